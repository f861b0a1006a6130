"""What the stress tests stand on: agents as programs of their own that take orders, and their log of effects.

rig = Rig(system, folder)
one, two = await rig.agents(2)
await one.ask("tickets", capability="stress.read", count=5)
one.kill()                                   # also freeze(), thaw(), terminate()
rig.effects.begun("write")                   # by key: how often a handler began, counted from outside
"""

import asyncio
import json
import logging
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import reach
from reach.bus.connection import Connection
from reach.bus.keys import Role
from reach.call.client import Bus
from reach.observe.records import NullSink, Recorder
from reach.policy.breaker_settings import BreakerSettings
from reach.runtime.platform import READY, platform_command
from reach.wire.reply import Reply
from tests.chaos.judging_rig import judge_by

ROOT = Path(__file__).resolve().parents[2]
AGENT = Path(__file__).with_name("stress_agent.py")
CALLER = Path(__file__).with_name("stress_caller.py")
SENTINEL = "actors.sentinel.actor:Sentinel"
START_S = 30.0
"""How long a program may take to serve: imports on a busy machine."""
ANSWER_S = 60.0
END_S = 10.0
PATIENT = BreakerSettings(slow_floor_ms=10_000)
"""Breakers that open for failures as ever, but not for slowness: that is the machine's, where it is crowded."""


def tell(text: str) -> None:
    """Print a measured number; `pytest -s` or a failure shows it."""
    print(f"  ▸ {text}", flush=True)  # noqa: T201 - numbers are what these tests are read for


async def eventually(condition: Any, *, within_s: float = 10.0) -> float:
    """Wait until something holds that has no event to offer; how long that took, in seconds."""
    began = monotonic()
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.005)
    return monotonic() - began


@dataclass(frozen=True, slots=True)
class Effect:
    """One line of the log: a handler began, ended or was cancelled, in which process, when (monotonic s)."""

    event: str
    kind: str
    key: str
    pid: int
    at: float


class Effects:
    """The log that all agents of a test append to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def all(self) -> list[Effect]:
        """Read everything written so far."""
        found = []
        written, _, _ = self.path.read_text("utf-8").rpartition("\n")  # The last one may be half there.
        for line in written.splitlines():
            event, kind, key, pid, at = line.split()
            found.append(Effect(event, kind, key, int(pid), float(at)))
        return found

    def of(self, event: str, kind: str) -> list[Effect]:
        """Read the lines of one event of one kind of handler."""
        return [effect for effect in self.all() if (effect.event, effect.kind) == (event, kind)]

    def begun(self, kind: str) -> Counter[str]:
        """How often a handler of this kind began, by the call's key."""
        return Counter(effect.key for effect in self.of("begin", kind))


class Peer:
    """An agent, or a caller, in a process of its own that takes orders. Use `Rig.agent`, `Rig.caller`."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self.log = log
        self.name = ""
        self._frozen = False
        self._one_at_a_time = asyncio.Lock()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def printed(self) -> str:
        return self.log.read_text("utf-8", "replace")

    async def ready(self) -> None:
        answer = await self._hear(START_S)
        self.name = answer["instance"]

    async def ask(self, do: str, *, answer_s: float = ANSWER_S, **more: Any) -> dict[str, Any]:
        """Give an order and wait for its answer."""
        async with self._one_at_a_time:
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps({"do": do, **more}).encode() + b"\n")
            return await self._hear(answer_s)

    async def status(self) -> dict[str, Any]:
        return await self.ask("status")

    async def back(self, *, epoch: int) -> None:
        """Wait until it is on its n-th link, and the server knows what it is subscribed to there."""
        async with asyncio.timeout(15.0):
            while (await self.ask("reach"))["epoch"] < epoch:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)

    async def _hear(self, timeout_s: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        async with asyncio.timeout(timeout_s):
            line = await self.process.stdout.readline()
        assert line, f"the agent ended:\n{self.printed}"
        answer: dict[str, Any] = json.loads(line)
        assert "failed" not in answer, f"an order failed:\n{self.printed}"
        return answer

    def freeze(self) -> None:
        self._frozen = True
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._frozen = False
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> float:
        """End it without a word; when, in monotonic seconds."""
        at = monotonic()
        self.process.kill()
        return at

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    async def ended(self, within_s: float = END_S) -> int:
        async with asyncio.timeout(within_s):
            return await self.process.wait()

    async def end(self) -> None:
        if self.process.returncode is not None:
            return
        if self._frozen:
            self.thaw()
        self.terminate()
        try:
            await self.ended()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


class Rig:
    """Agents, callers and the platform of one test."""

    def __init__(self, system: Any, folder: Path) -> None:
        self.system = system
        self.folder = folder
        self.effects = Effects(folder / "effects.log")
        self.peers: list[Peer] = []
        self._stack = AsyncExitStack()
        # Thousands of failed calls are expected here: their lines would bury what a failing test has to say.
        access = logging.getLogger("reach.access")
        access.disabled = True
        self._stack.callback(setattr, access, "disabled", False)

    # -- who takes part ------------------------------------------------------------------------------

    async def agent(self, **env: str) -> Peer:
        """Start an agent; it serves when this returns."""
        (peer,) = await self.agents(1, **env)
        return peer

    async def agents(self, number: int, **env: str) -> list[Peer]:
        """Start several instances of the agent at once."""
        peers = [await self._start(AGENT, **env) for _ in range(number)]
        await asyncio.gather(*(peer.ready() for peer in peers))
        return peers

    async def caller(self, **env: str) -> Peer:
        """Start a caller that is a program of its own."""
        peer = await self._start(CALLER, **env)
        await peer.ready()
        return peer

    async def _start(self, program: Path, **env: str) -> Peer:
        log = self.folder / f"{program.stem}-{len(self.peers)}.log"
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(program),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env={**self.system.env, "EFFECTS": str(self.effects.path), "PYTHONPATH": str(ROOT), **env},
            )
        peer = Peer(process, log)
        self.peers.append(peer)
        return peer

    async def bus(self, *, settings: Any = None, role: Role = Role.CALLER) -> Bus:
        """Connect a caller whose breakers are patient."""
        recorder = Recorder(NullSink())
        self._stack.callback(recorder.close)
        bus = await self._stack.enter_async_context(
            reach.connect(settings=settings or self.system.settings(role), role=role, recorder=recorder)
        )
        return patient(bus)

    async def connection(self, role: Role) -> Connection:
        """Open a bare connection."""
        connection = await Connection.open(self.system.settings(role), role=role.value)
        self._stack.push_async_callback(connection.close)
        return connection

    async def platform(self) -> None:
        """Start the platform process, with the sentinel in it."""
        await self._stack.enter_async_context(_platform(self.system))

    # -- what becomes of it --------------------------------------------------------------------------

    async def close(self) -> None:
        """End everything."""
        await asyncio.gather(*(peer.end() for peer in self.peers))
        await self._stack.aclose()


@asynccontextmanager
async def _platform(system: Any) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        *platform_command(system.home, actors=[SENTINEL], watch_stdin=True),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=system.env,
    )
    assert process.stdout is not None
    async with asyncio.timeout(START_S):
        line = await process.stdout.readline()
    assert line.decode().startswith(READY), line
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


def patient(bus: Bus) -> Bus:
    """Make the breakers of a caller patient."""
    judge_by(bus, PATIENT)
    return bus


def left_of(bus: Bus) -> dict[str, int]:
    """What a caller still holds of its calls; all zero when they have ended."""
    mux = bus._core.mux
    return {
        "pending": len(mux),
        "open": bus._core.outbound.open_calls,
        "accepted": len(mux._by_instance),
        "orphans": len(mux._orphans),
        "events": len(bus._core.outflow._events),
    }


NOTHING = dict.fromkeys(("pending", "open", "accepted", "orphans", "events"), 0)
"""`left_of` a caller whose calls have all ended."""


def faults_of(replies: dict[str, Reply]) -> dict[str, str]:
    """Say of each failed call how it failed."""
    return {
        key: f"{error.code}/{error.reason} cause {error.cause} ({error.executed}) by {reply.instance}"
        for key, reply in replies.items()
        if (error := reply.error) is not None
    }
