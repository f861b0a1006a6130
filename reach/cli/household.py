"""What lives under `reach up`: the NATS server, the platform, the demo's agents; from start to orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.text import Text

from reach.bus.addresses import redact
from reach.bus.embedded import EmbeddedServer
from reach.chance import random
from reach.cli import leash, output
from reach.cli.exits import Exit, Refusal
from reach.cli.keeper import Job, Keeper, environment
from reach.errors import ConfigError
from reach.policy.restart import GiveUp, RestartBook
from reach.runtime import platform

DEMO_INSTANCES: Final = 3
DEMO_TARGETS: Final = ("examples.invoices.agent", "examples.invoice_agent")
"""Modules that may hold the demo's agent, in a checkout; the first that is there serves."""

DEMO_CALL: Final = "reach call invoice.extract content=@examples/invoices/samples/facturx_simple.pdf"

_READY_S: Final = 60.0
_PLATFORM_STOP_S: Final = 10.0
_AGENT_STOP_S: Final = 35.0
"""An agent finishes what it runs, for at most 30 s."""

_PORT_FREE_S: Final = 20.0
"""A client that connects to a port of the system's own range while nobody listens can end up talking to itself."""

_LOOK_S: Final = 0.5
"""How often to look whether the server still lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What was asked for on the command line."""

    home: Path
    port: int | None
    host: str
    demo: bool
    sync_always: bool
    url: str | None
    as_json: bool


class Household:
    """Everything that `reach up` runs."""

    def __init__(self, wish: Wish) -> None:
        self._wish = wish
        # One console for what is said meanwhile: lines then go above the sign that something is under way.
        self._console = output.console(sys.stderr)
        self._server: EmbeddedServer | None = None
        self._platform: Keeper | None = None
        self._agents: list[Keeper] = []

    def live(self) -> None:
        """Start, run until a signal, stop. Raises `ConfigError`, `Refusal`."""
        demo = find_demo() if self._wish.demo else None
        if self._wish.url is None:
            with self._waiting("Starting NATS …"):
                self._server = self._start_server(self._wish.port)
            if not self._server.owned:
                self._tell_found(self._server)
                return
            self._warn(self._server)
        try:
            asyncio.run(self._run(demo))
        finally:
            if self._server is not None:
                self._server.stop()
        if not self._wish.as_json:
            output.say("Stopped.")

    def _start_server(self, port: int | None) -> EmbeddedServer:
        wish = self._wish
        return EmbeddedServer.start(wish.home, port=port, host=wish.host, sync_always=wish.sync_always)

    def _warn(self, server: EmbeddedServer) -> None:
        if server.note:
            output.say(server.note, style="yellow")
        if other := next((name for name in ("REACH_URL", "REACH_CONTEXT") if os.environ.get(name)), None):
            output.say(f"{other} is set: other commands go there, and not to this server.", style="yellow")

    @property
    def _address(self) -> str:
        if self._wish.url is not None:
            return redact(self._wish.url)
        return self._server.url if self._server else ""

    # -- running -------------------------------------------------------------------------------------

    async def _run(self, demo: Demo | None) -> None:
        self._platform = Keeper(self._platform_job(), log=self._say)
        if demo is not None:
            numbers = range(1, DEMO_INSTANCES + 1)
            self._agents = [Keeper(self._demo_job(demo, number), log=self._say) for number in numbers]
        stop = asyncio.Event()
        with self._signals(stop):
            try:
                async with asyncio.TaskGroup() as group:
                    keeping = [group.create_task(keeper.run()) for keeper in (self._platform, *self._agents)]
                    guarding = group.create_task(self._guard_server())
                    announcing = group.create_task(self._announce(stop))
                    await stop.wait()
                    announcing.cancel()
                    await self._stop_in_order(keeping)
                    guarding.cancel()
            except BaseExceptionGroup as several:
                # The first that could not be kept ended the others.
                raise several.exceptions[0] from None

    async def _stop_in_order(self, keeping: list[asyncio.Task[None]]) -> None:
        """Agents first, then the platform; the server after all of them."""
        for keeper in self._agents:
            keeper.stop()
        await asyncio.gather(*keeping[1:])
        if self._platform is not None:
            self._platform.stop()
        await keeping[0]

    @contextlib.contextmanager
    def _signals(self, stop: asyncio.Event) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            if stop.is_set():
                for keeper in (*self._agents, self._platform):
                    if keeper is not None:
                        keeper.kill()
                return
            stop.set()
            if not self._wish.as_json:
                output.say("Stopping. Once more, and nothing is waited for.")

        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, on_signal)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    async def _guard_server(self) -> None:
        """Start the server again if it dies: its data, port and keys are in the folder, so clients come back."""
        book = RestartBook(["NATS"])
        while self._server is not None:
            await asyncio.sleep(_LOOK_S)
            if self._server.is_running:
                continue
            decision = book.failed("NATS", now=time.monotonic(), jitter=random())
            if isinstance(decision, GiveUp):
                message = f"NATS ended again and again: {decision.reason}."
                raise Refusal(Exit.SETUP, message, fix=f"Its log is {self._wish.home / 'nats.log'}.")
            self._say("NATS ended. Starting it again.")
            await asyncio.sleep(decision.delay_s)
            self._server.stop()
            self._server = await self._start_again(self._server.info.port)

    async def _start_again(self, port: int) -> EmbeddedServer:
        """Start it at the same address, where clients come back to; one of them may hold the port for a moment."""
        give_up_at = time.monotonic() + _PORT_FREE_S
        while True:
            try:
                return await asyncio.to_thread(self._start_server, port)
            except ConfigError as error:
                if time.monotonic() > give_up_at:
                    raise
                self._say(f"{error} Trying again.")
            await asyncio.sleep(_LOOK_S)

    # -- telling -------------------------------------------------------------------------------------

    async def _announce(self, stop: asyncio.Event) -> None:
        keepers = [keeper for keeper in (self._platform, *self._agents) if keeper is not None]
        try:
            with self._waiting("Starting the platform …"):
                async with asyncio.timeout(_READY_S):
                    for keeper in keepers:
                        await keeper.ready.wait()
        except TimeoutError:
            slow = ", ".join(keeper.job.name for keeper in keepers if not keeper.ready.is_set())
            raise Refusal(Exit.SETUP, f"Not ready within {_READY_S:g} s: {slow}.") from None
        if not stop.is_set():
            self._tell_ready()

    def _tell_ready(self) -> None:
        if self._wish.as_json:
            output.line(output.compact(self._facts("ready")))
            return
        output.line(f"✔ Reach is ready at {self._address}  (Ctrl-C stops it)")
        output.line(f"  state folder   {self._wish.home}")
        if self._wish.demo:
            output.line(f"  demo           {DEMO_CALL}")
        output.line("  serve          reach run my_module:agent")
        output.line("  call           reach caps, then reach call CAPABILITY key=value")

    def _tell_found(self, server: EmbeddedServer) -> None:
        if self._wish.as_json:
            output.line(output.compact(self._facts("running")))
            return
        output.line(f"Reach is already running at {server.url} (pid {server.pid}).")
        output.line(f"  state folder   {self._wish.home}")
        if self._wish.port not in {None, 0, server.info.port}:
            output.say(server.note, style="yellow")
        if self._wish.demo:
            output.say(f"To add the demo's agent to it, in a checkout: reach run {find_demo().target}")

    def _facts(self, status: str) -> dict[str, object]:
        facts: dict[str, object] = {"status": status, "url": self._address, "home": str(self._wish.home)}
        if self._server is not None:
            facts["pid"] = self._server.pid
        if self._platform is not None:
            facts["platform_pid"] = self._platform.pid
        return facts

    def _say(self, text: str) -> None:
        self._console.print(Text(text, style="dim"), soft_wrap=True)

    def _waiting(self, text: str) -> contextlib.AbstractContextManager[object]:
        """Show that something is under way, on a terminal."""
        return self._console.status(text) if self._console.is_terminal else contextlib.nullcontext()

    # -- jobs ----------------------------------------------------------------------------------------

    def _platform_job(self) -> Job:
        return Job(
            name="The platform",
            command=platform.platform_command(self._wish.home, url=self._wish.url, watch_stdin=True),
            env=environment(self._wish.home, url=self._wish.url),
            is_ready=lambda line: line.startswith(platform.READY),
            hopeless=frozenset({int(platform.Exit.SETUP), 2}),
            stop_s=_PLATFORM_STOP_S,
        )

    def _demo_job(self, demo: Demo, number: int) -> Job:
        command = [sys.executable, "-m", "reach.cli.main", "run", demo.target, "--json"]
        return Job(
            name=f"Demo agent {number}",
            command=[sys.executable, "-I", "-S", leash.__file__, str(_AGENT_STOP_S), *command],
            env=environment(self._wish.home, url=self._wish.url),
            folder=demo.folder,
            is_ready=lambda line: '"status":"ready"' in line,
            hopeless=frozenset({int(Exit.SETUP), int(Exit.USAGE)}),
            stop_s=_AGENT_STOP_S + 5,
        )


@dataclass(frozen=True, slots=True)
class Demo:
    """Where the demo's agent is: the folder to run in, and its target for `reach run`."""

    folder: Path
    target: str


def find_demo() -> Demo:
    """Find the demo in this checkout, or in the current folder. Raises `Refusal`."""
    for folder in (Path(__file__).resolve().parents[2], Path.cwd()):
        for module in DEMO_TARGETS:
            if (folder / f"{module.replace('.', '/')}.py").is_file():
                return Demo(folder, f"{module}:agent")
    raise Refusal(
        Exit.SETUP,
        "The demo is not here: an installed package does not carry it.",
        fix="Get a checkout or the source archive of agent-reach, and run it there: make demo, or reach up --demo",
    )
