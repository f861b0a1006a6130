"""Keeps one child process of `reach up` running: starts it, tells when it is ready, starts it again, gives up.

How often and after how long is `reach.policy.restart`'s to say. A child lives in a session of its own, so that a
Ctrl-C in the terminal reaches `reach up` alone, which ends things in order; and it ends when its standard input
does, so that it never outlives `reach up`, even one that was killed with -9.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reach.chance import random
from reach.cli.exits import Exit, Refusal
from reach.policy.restart import GiveUp, RestartBook

_TAIL_LINES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A process to keep.

    Attributes:
        name: For people.
        command: What to run; it must end when its standard input does.
        folder: Where to run it; None is here.
        env: Its environment.
        is_ready: Whether a line that it printed says that it is ready.
        hopeless: Exit codes after which another start would end the same way.
        stop_s: How long it may take to stop before it is killed.
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    is_ready: Callable[[str], bool]
    folder: Path | None = None
    hopeless: frozenset[int] = frozenset()
    stop_s: float = 10.0


class Keeper:
    """Runs one job until told to stop. `ready` is set while it is ready; `log` gets what it prints and what happens."""

    def __init__(self, job: Job, *, log: Callable[[str], None]) -> None:
        self.job = job
        self.ready = asyncio.Event()
        self.restarts = 0
        self._log = log
        self._book = RestartBook([job.name])
        self._stopping = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)

    @property
    def pid(self) -> int | None:
        """Process id of the present child."""
        return None if self._process is None else self._process.pid

    async def run(self) -> None:
        """Keep it running until `stop`. Raises `Refusal` when it cannot be kept."""
        while not self._stopping.is_set():
            code = await self._once()
            if self._stopping.is_set():
                return
            await self._pause(self._judge(code))

    def stop(self) -> None:
        """Ask for an orderly end; `run` returns when it has come."""
        self._stopping.set()

    def kill(self) -> None:
        """End it now."""
        self._stopping.set()
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def _judge(self, code: int) -> float:
        """Give the seconds to wait before the next start. Raises `Refusal`."""
        ended = f"{self.job.name} ended ({_code_text(code)})"
        said = "\n".join(self._tail)
        if code in self.job.hopeless:
            raise Refusal(Exit.SETUP, f"{ended}.", fix=said)
        decision = self._book.failed(self.job.name, now=time.monotonic(), jitter=random())
        if isinstance(decision, GiveUp):
            raise Refusal(Exit.SETUP, f"{ended}, and is not started again: {decision.reason}.", fix=said)
        self.restarts += 1
        self._log(f"{ended}. Starting it again in {decision.delay_s:.1f} s.")
        return decision.delay_s

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def _once(self) -> int:
        """Run it once, to its end; give its exit code."""
        self._tail.clear()
        process = await asyncio.create_subprocess_exec(
            *self.job.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=self.job.folder,
            env=dict(self.job.env),
            start_new_session=True,
        )
        self._process = process
        # Tasks of one process: both end with it, and are awaited here.
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read(process))
            ending = group.create_task(self._end_when_asked(process))
            code = await process.wait()
            ending.cancel()
        self.ready.clear()
        return code

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            raise RuntimeError("the process was started without a pipe to hear it")
        while line := await _line(process.stdout):
            text = line.decode("utf-8", "replace").rstrip()
            if not self.ready.is_set() and self.job.is_ready(text):
                self.ready.set()
            elif text:
                self._tail.append(text)
                self._log(text)

    async def _end_when_asked(self, process: asyncio.subprocess.Process) -> None:
        await self._stopping.wait()
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(self.job.stop_s):
                await process.wait()
        except TimeoutError:
            self._log(f"{self.job.name} did not stop within {self.job.stop_s:g} s; killing it.")
            process.kill()


async def _line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readline()
    except ValueError:  # Longer than the reader's limit: the rest of it comes as the next line.
        return await stream.read(1024)


def _code_text(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


_PLACES: Final = ("REACH_URL", "REACH_CONTEXT")
_LOGINS: Final = ("REACH_CREDS", "REACH_NKEY", "REACH_USER", "REACH_PASSWORD", "REACH_TOKEN")


def environment(home: Path, *, url: str | None) -> dict[str, str]:
    """Give the environment of children: the state folder's server or `url`, whatever else was named.

    A login in the environment is for a NATS elsewhere; the folder's own server knows the folder's keys only.
    """
    dropped = _PLACES if url else (*_PLACES, *_LOGINS)
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, **({"REACH_URL": url} if url else {}), "REACH_HOME": str(home), "PYTHONUNBUFFERED": "1"}
