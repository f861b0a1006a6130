"""The demonstration's programs: started as a user would start them, and ended whatever happens.

Each one lives in a session of its own, so that a Ctrl-C in the terminal reaches the demonstration alone, which
ends the others in order. On Linux the kernel ends them too when the demonstration is killed with -9.
"""

import asyncio
import ctypes
import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
"""The checkout: the programs run there."""

AGENT: Final = "examples.demo.agent:agent"

_START_S: Final = 30.0
_STOP_S: Final = 20.0
_GONE_S: Final = 5.0
_PR_SET_PDEATHSIG: Final = 1  # prctl(2)
_TAIL_LINES: Final = 12


class StartFailed(Exception):
    """A program ended, or did not become ready in time; the message carries what it said."""


class Program:
    """One program under our care. `facts` is what it said when it became ready."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.facts: dict[str, Any] = {}
        self._process = process
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._drain: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, name: str, command: Sequence[str], *, env: Mapping[str, str]) -> "Program":
        """Start it, and wait until it prints a line of JSON that says `"status": "ready"`. Raises `StartFailed`."""
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=ROOT,
            env=dict(env),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
        program = cls(name, process)
        try:
            async with asyncio.timeout(_START_S):
                await program._wait_ready()
        except TimeoutError:
            await program.stop()
            raise StartFailed(f"{name} was not ready within {_START_S:.0f} s.{program._said()}") from None
        except BaseException:
            await program.stop()
            raise
        # Read on, so that a full pipe never stops it; ends with the program, and is awaited in `stop`.
        program._drain = asyncio.create_task(program._read_on())
        return program

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def freeze(self) -> None:
        """Stop it where it is, as if it hung."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as a crash would: no signal handler, no goodbye."""
        self._process.kill()

    async def stop(self) -> None:
        """Let it end in order, and see that it does; may be called for one that has ended."""
        if self._process.returncode is None:
            self._process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        if self._drain is not None:
            await self._drain

    async def _wait_ready(self) -> None:
        while line := await self._line():
            self._tail.append(line.rstrip())
            if line.startswith("{"):
                facts = json.loads(line)
                if facts.get("status") == "ready":
                    self.facts = facts
                    return
        code = await self._process.wait()
        raise StartFailed(f"{self.name} ended at once (exit code {code}).{self._said()}")

    async def _read_on(self) -> None:
        while line := await self._line():
            self._tail.append(line.rstrip())

    async def _line(self) -> str:
        if self._process.stdout is None:
            raise RuntimeError("a program was started without its pipe")
        return (await self._process.stdout.readline()).decode("utf-8", "replace")

    def _said(self) -> str:
        return "".join(f"\n  {line}" for line in self._tail)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class House:
    """NATS, the platform and the agents, in a state folder of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.agents: list[Program] = []
        self._platform: Program | None = None
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REACH_")}
        self.env = {**kept, "REACH_HOME": str(home), "PYTHONUNBUFFERED": "1"}

    async def open(self, *, instances: int) -> None:
        """Start everything. Raises `StartFailed`; what was started is ended by `close`."""
        reach = [sys.executable, "-m", "reach.cli.main"]
        up = [*reach, "up", "--home", str(self.home), "--port", "0", "--json"]
        self._platform = await Program.start("reach up", up, env=self.env)
        run = [*reach, "run", AGENT, "--json"]
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(1, instances + 1):
                    group.create_task(self._add(f"agent {number}", run))
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None  # Told plainly: what ails one ails all of them.

    async def _add(self, name: str, command: Sequence[str]) -> None:
        self.agents.append(await Program.start(name, command, env=self.env))

    @property
    def address(self) -> str:
        """Where NATS listens."""
        return "" if self._platform is None else str(self._platform.facts.get("url", ""))

    def pids(self) -> list[int]:
        """Give the processes that must be gone at the end, NATS's and the platform's among them."""
        found = [agent.pid for agent in self.agents]
        if self._platform is not None:
            facts = self._platform.facts
            found += [
                self._platform.pid,
                *(facts[name] for name in ("pid", "platform_pid") if facts.get(name)),
            ]
        return found

    async def close(self) -> None:
        """End everything, the agents first."""
        async with asyncio.TaskGroup() as group:
            for agent in self.agents:
                group.create_task(agent.stop())
        if self._platform is not None:
            await self._platform.stop()


async def still_running(pids: Iterable[int]) -> list[int]:
    """Give those of the processes that live on; a moment is allowed for the system to clear up."""
    until = time.monotonic() + _GONE_S
    left = [pid for pid in pids if _lives(pid)]
    while left and time.monotonic() < until:
        await asyncio.sleep(0.05)
        left = [pid for pid in left if _lives(pid)]
    return left


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # Somebody else's by now.
        return False
    return True
