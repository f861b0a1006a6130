"""One worker process, as its agent sees it.

The worker is a fresh interpreter (never a fork) that imports one function by path. Parameters and results
cross as msgpack in length-prefixed frames over a socket pair of their own, so that nothing is unpickled and
what a handler prints goes where the agent's own output goes. The worker dies with its agent, whatever that
died of: its standard input is a pipe that closes. (`concurrent.futures` fails every call when one worker
dies; here each call has its own worker, and its own end.)
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reach.errors import ConfigError, NotExecuted, SchemaInvalid
from reach.wire import codec
from reach.wire.reply import Failure

READY_S: Final = 30.0
"""How long a worker may take to import the function: a cold import of a large library takes several seconds."""

EXIT_S: Final = 0.5
"""How long to wait for the exit status of a worker whose socket has closed."""

HEAD: Final = 4
"""Bytes of a frame's length, big-endian."""

_BOOT: Final = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    "from reach.runtime.worker_main import main; main(int(sys.argv[1]))"
)


class WorkerEnded(Exception):
    """The process is gone; the text says how (`signal 9`, `exit status 1`)."""


class HandlerRaised(Exception):
    """An exception of the handler in a worker: what it was, not the object.

    `type_name` is its class, `where` the file, line and function that raised it; both are for the agent's own
    log. Its text stays in the worker.
    """

    def __init__(self, type_name: str, where: str) -> None:
        super().__init__(f"{type_name} at {where}")
        self.type_name = type_name
        self.where = where


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker answered: a head that says what it is, and a body."""

    head: dict[str, Any]
    body: dict[str, Any]

    def value(self) -> Any:
        """Give the result, or raise what the handler raised."""
        kind = self.head.get("kind")
        if kind == "result":
            return self.body.get("value")
        if kind == "failure":
            raise Failure.from_map(self.body).to_error()
        if kind == "not_executed":
            raise NotExecuted(str(self.body.get("message", "")))
        raise HandlerRaised(str(self.body.get("type")), str(self.body.get("where")))


def import_path(function: Callable[..., Any]) -> str:
    """Give `module:qualname` by which a worker finds a function. Raises `TypeError` when it could not."""
    name = getattr(function, "__qualname__", None) or type(function).__name__
    if not inspect.isfunction(function):
        raise TypeError(
            f"{name} cannot run in a worker process, which imports functions by name: "
            "use a plain function at module level"
        )
    if "<lambda>" in name or "<locals>" in name:
        raise TypeError(
            f"{name.replace('.<locals>', '')} cannot run in a worker process, which imports functions by name: "
            "move it to module level, since a lambda or a function inside a function has no name to import"
        )
    module = function.__module__
    if module == "__main__":
        return f"{_main_name()}:{name}"
    return f"{module}:{name}"


def _main_name() -> str:
    """Name the running program as a worker can import it: its module (`python -m`), else its file."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return str(spec.name)
    if _main_file() is None:
        raise TypeError(
            "a function typed into the interpreter cannot run in a worker process, which must import it: "
            "put it into a file"
        )
    return "__main__"


def _main_file() -> str | None:
    file = getattr(sys.modules["__main__"], "__file__", None)
    return str(Path(file).absolute()) if file and Path(file).is_file() else None


class Worker(asyncio.SubprocessProtocol):
    """One process that has imported one function. Begin with `begin`; it takes one call at a time."""

    def __init__(self) -> None:
        self.exited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.pid = 0
        self._process: asyncio.SubprocessTransport | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def begin(self, path: str) -> None:
        """Start the process and let it import `path`. Raises `ConfigError` when it cannot.

        Whoever called stays responsible for `kill`, also when this was cancelled or has failed.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                await self._start(theirs.fileno())
            self._reader, self._writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        try:
            async with asyncio.timeout(READY_S):
                await self._load(path)
        except TimeoutError:
            raise ConfigError(
                f"a worker process did not finish importing {path!r} within {READY_S:g} s: what runs the agent "
                "belongs under `if __name__ == '__main__':`"
            ) from None
        except WorkerEnded as ended:
            raise ConfigError(f"a worker process ended ({ended}) while it imported {path!r}") from None

    @property
    def alive(self) -> bool:
        """Whether the process runs and its socket is open."""
        writer = self._writer
        return not self.exited.done() and writer is not None and not writer.is_closing()

    async def ask(self, capability: str, body: bytes) -> Answer:
        """Hand over one call and wait for its answer. Raises `WorkerEnded`."""
        return await self._exchange({"capability": capability}, body)

    def leave(self) -> None:
        """Ask the process to end: its input and its socket close."""
        if self._writer is not None:
            self._writer.close()
        if self._process is not None and (pipe := self._process.get_pipe_transport(0)) is not None:
            pipe.close()

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None and not self.exited.done():
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        self._close()

    # -- the process (called by asyncio) -------------------------------------------------------------

    def process_exited(self) -> None:
        """Wake whoever waits for an answer: none will come."""
        if not self.exited.done():
            self.exited.set_result(None)
        self._close()

    # -- inside --------------------------------------------------------------------------------------

    async def _start(self, fd: int) -> None:
        loop = asyncio.get_running_loop()
        self._process, _ = await loop.subprocess_exec(
            lambda: self,
            *(sys.executable, "-P", "-c", _BOOT, str(fd), json.dumps(sys.path)),
            stdout=None,
            stderr=None,
            pass_fds=(fd,),
        )
        self.pid = self._process.get_pid()

    async def _load(self, path: str) -> None:
        answer = await self._exchange({"load": path, "main": _main_file()}, b"\x80")
        if answer.head.get("kind") != "ready":
            raise ConfigError(f"a worker process could not import {path!r}: {answer.body.get('message')}")

    async def _exchange(self, head: dict[str, Any], body: bytes) -> Answer:
        if self._reader is None or self._writer is None:
            raise WorkerEnded("never started")
        try:
            for part in (codec.pack(head), body):
                self._writer.write(len(part).to_bytes(HEAD) + part)
            await self._writer.drain()
            return Answer(await self._frame(self._reader), await self._frame(self._reader))
        except (asyncio.IncompleteReadError, ConnectionError):
            raise WorkerEnded(await self._how()) from None
        except SchemaInvalid:
            raise WorkerEnded("it answered something else than results") from None

    async def _frame(self, reader: asyncio.StreamReader) -> dict[str, Any]:
        size = int.from_bytes(await reader.readexactly(HEAD))
        if size > codec.MAX_BYTES:
            raise SchemaInvalid("the frame is too large to be one")
        return codec.unpack(await reader.readexactly(size))

    async def _how(self) -> str:
        """Say how the process ended."""
        await asyncio.wait([self.exited], timeout=EXIT_S)
        code = None if self._process is None else self._process.get_returncode()
        if code is None:
            return "its connection closed"
        return f"signal {-code}" if code < 0 else f"exit status {code}"

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        if self._process is not None and (pipe := self._process.get_pipe_transport(0)) is not None:
            pipe.close()
        if self._process is not None and self.exited.done():
            self._process.close()
