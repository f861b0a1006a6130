"""The command line as people use it: real processes, a real server, a state folder of its own for the tests."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from reach.bus.connection import Connection
from reach.bus.embedded import ANY_PORT, EmbeddedServer
from reach.bus.keys import Role
from reach.bus.provision import provision
from reach.bus.settings import resolve
from reach.runtime.platform import READY, platform_command

ACTORS = ("actors.sentinel.actor:Sentinel", "actors.supervisor.actor:Supervisor")
COMMAND = (sys.executable, "-m", "reach.cli.main")
LINE_S = 60.0
"""How long a line is waited for that somebody else prints: far more than any machine takes, less than a hang."""
OURS = ("REACH_", "LC_", "LANG", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM")

SHOP = '''
"""What the tests call."""

import asyncio
from collections.abc import AsyncIterator
from datetime import date

from pydantic import BaseModel, Field

import reach

agent = reach.Agent("shop", version="1.2.0", owner="sales", labels={"tier": "gold"})


class Order(BaseModel):
    item: str = Field(description="Article number", examples=["A-17"])
    count: int = Field(1, description="How many", ge=1)
    due: date | None = None


@agent.capability("order.price", idempotent=True)
async def price(order: Order) -> dict[str, object]:
    """Price of an order."""
    return {"item": order.item, "total": order.count * 2.5}


@agent.capability("text.upper", idempotent=True)
async def upper(text: str) -> str:
    return text.upper()


@agent.capability("blob.echo", idempotent=True)
async def echo(file: bytes) -> bytes:
    return file


@agent.capability("nap", idempotent=True, max_concurrency=64)
async def nap(n: int, seconds: float = 0.02) -> int:
    await asyncio.sleep(seconds)
    return n


@agent.capability("few", idempotent=True, max_concurrency=2)
async def few(n: int) -> int:
    await asyncio.sleep(0.01)
    return n


@agent.capability("write")
async def write(n: int, path: str, seconds: float = 0.02) -> int:
    with open(path, "a") as file:
        file.write(f"{n}\\n")
    await asyncio.sleep(seconds)
    return n


@agent.capability("boom")
async def boom() -> int:
    raise RuntimeError("hunter2")


@agent.capability("count")
async def count(to: int, pause: float = 0.0) -> AsyncIterator[int]:
    for n in range(to):
        yield n
        await asyncio.sleep(pause)


@agent.capability("words")
async def words(text: str) -> AsyncIterator[str]:
    for word in text.split():
        yield word + " "


@agent.capability("breaks")
async def breaks() -> AsyncIterator[int]:
    yield 1
    raise RuntimeError("hunter2")
'''

READERS = '''
"""Two agents of one tier and one of the next, for the tests of steering."""

import asyncio

import reach

reader = reach.Agent("reader", version="1.0.0", labels={"pool": "old"})
trial = reach.Agent("reader-next", version="2.0.0", labels={"pool": "new"})
spare = reach.Agent("spare")
alone = reach.Agent("alone", labels={"pod": "a"})

for test in ("looked", "weights", "canary", "lanes", "limits", "audit"):

    @reader.capability(f"steer.{test}", idempotent=True)
    @trial.capability(f"steer.{test}", idempotent=True)
    @spare.capability(f"steer.{test}", idempotent=True, priority=20)
    async def read(n: int = 0) -> int:
        """Read."""
        return n


@alone.capability("alone.nap", idempotent=True)
async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "rested"
'''


def environment(**changes: str | None) -> dict[str, str]:
    """The environment of a command: nothing of the tester's own settings, English, and what is given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    kept |= {"LANG": "en_GB.UTF-8", "PYTHONWARNINGS": "ignore", "COLUMNS": "100"}
    for name, value in changes.items():
        kept.pop(name, None)
        if value is not None:
            kept[name] = value
    return kept


class Program(subprocess.Popen[str]):
    """A process that runs meanwhile. Its stderr goes to a file: a pipe that nobody reads would stop it when full."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdin: int) -> None:
        self._errors = cwd / f".stderr-{next(_numbers)}"
        with self._errors.open("w") as errors:
            super().__init__(
                command, env=env, cwd=cwd, stdin=stdin, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def said(self) -> str:
        """What it wrote to stderr so far."""
        return self._errors.read_text()

    def finish(self, *, timeout_s: float = 30.0) -> tuple[str, str]:
        """Wait for its end: stdout, stderr."""
        out, _ = self.communicate(timeout=timeout_s)
        return out, self.said()


_numbers = itertools.count()


@dataclass(frozen=True)
class Reach:
    """The command `reach` with one environment, in one folder; `env` of a call changes it, None removes."""

    env: Mapping[str, str]
    cwd: Path

    def __call__(
        self,
        *arguments: str | Path,
        stdin: str | bytes = "",
        timeout_s: float = 60.0,
        env: Mapping[str, str | None] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        done = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            env=self.changed(env),
            cwd=self.cwd,
            capture_output=True,
            check=False,
            timeout=timeout_s,
        )
        out, err = (text.decode("utf-8", "surrogateescape") for text in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def changed(self, changes: Mapping[str, str | None] | None) -> dict[str, str]:
        merged: dict[str, str | None] = {**self.env, **(changes or {})}
        return {name: value for name, value in merged.items() if value is not None}

    def start(
        self,
        *arguments: str | Path,
        stdin: int = subprocess.DEVNULL,
        env: Mapping[str, str | None] | None = None,
    ) -> Program:
        """Start it, and leave it running."""
        command = [*COMMAND, *map(str, arguments)]
        return Program(command, env=self.changed(env), cwd=self.cwd, stdin=stdin)

    @contextmanager
    def running(
        self, *arguments: str | Path, until: str, env: Mapping[str, str | None] | None = None
    ) -> Iterator[Program]:
        """Start it, wait until it prints `until`, and end it in order afterwards."""
        process = self.start(*arguments, env=env)
        try:
            wait_for_line(process, until)
            yield process
        finally:
            end(process)


def wait_for_line(process: Program, text: str) -> str:
    """Read stdout up to the line that holds `text`; one that never comes ends the process, and so the wait."""
    if process.stdout is None:
        raise RuntimeError("stdout is not a pipe")
    seen = []
    too_late = threading.Timer(LINE_S, process.kill)
    too_late.start()
    try:
        for line in process.stdout:
            seen.append(line)
            if text in line:
                return line
    finally:
        too_late.cancel()
        too_late.join()
    raise AssertionError(f"it ended without saying {text!r}: {seen} {process.said()}")


def end(process: Program, *, number: int = signal.SIGTERM) -> int:
    """End a process that we started, and wait for it."""
    if process.poll() is None:
        process.send_signal(number)
    try:
        process.finish()
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return process.returncode


def wait_until(is_so: Callable[[], object], *, timeout_s: float = LINE_S) -> None:
    """Wait until a function gives something true."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            raise AssertionError("it did not happen in time")
        time.sleep(0.01)


@contextmanager
def server(home: Path, *, with_stores: bool = True) -> Iterator[EmbeddedServer]:
    """A server of a state folder, in this process, without a platform; its stores are made where asked."""
    running = EmbeddedServer.start(home, port=ANY_PORT)
    try:
        if with_stores:
            asyncio.run(_provision(home))
        yield running
    finally:
        running.stop()


@contextmanager
def platform(home: Path, cwd: Path) -> Iterator[Program]:
    """The platform process beside a server: its supervisor leads when this begins, or soon after."""
    command = platform_command(home, actors=ACTORS)
    process = Program(command, env=environment(), cwd=cwd, stdin=subprocess.DEVNULL)
    try:
        wait_for_line(process, READY)
        yield process
    finally:
        end(process)


async def _provision(home: Path) -> None:
    settings = resolve(role=Role.PLATFORM, env={"REACH_HOME": str(home)})
    connection = await Connection.open(settings, role=Role.PLATFORM.value)
    try:
        await provision(connection.jetstream())
    finally:
        await connection.close()
