"""Lines of an input, read by a thread of their own, because a pipe, a file and a terminal block alike.

A regular file cannot be waited for by an event loop, and a thread of the loop's pool that waits in `read` would
hold up the end of the process. So one daemon thread reads the descriptor itself, a chunk ahead and no more.
"""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import AsyncIterator
from typing import NamedTuple

from reach.cli.exits import usage
from reach.wire import codec

_CHUNK_BYTES = 256 * 1024
_CHUNKS_AHEAD = 2


class Line(NamedTuple):
    """One line that is not blank: its number in the input from 1, its bytes without the line break, its end."""

    number: int
    content: bytes
    end: int
    """How many bytes of the input are done when it is."""


class Feed:
    """Iterates over the lines of a descriptor; `end` of a line in `bytes_total` tells how far it is."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
        self._ahead = threading.Semaphore(_CHUNKS_AHEAD)
        self._loop = asyncio.get_running_loop()
        status = os.fstat(descriptor)
        self.bytes_total = status.st_size if stat.S_ISREG(status.st_mode) else None

    async def lines(self) -> AsyncIterator[Line]:
        """Give the lines that are not blank. Raises `OSError`, and `Refusal` for a line without an end."""
        threading.Thread(target=self._read, name="reach pipe input", daemon=True).start()
        number = end = 0
        rest = b""
        while chunk := await self._next():
            *complete, rest = (rest + chunk).split(b"\n")
            for content in complete:
                number += 1
                end += len(content) + 1
                if content := content.strip():
                    yield Line(number, content, end)
            if len(rest) > codec.MAX_BYTES:
                limit = codec.MAX_BYTES // 2**20
                raise usage(
                    f"Line {number + 1} of the input has more than {limit} MiB.",
                    fix="The input is JSON lines: one object of parameters a line.",
                )
        if content := rest.strip():
            yield Line(number + 1, content, end + len(rest))

    async def _next(self) -> bytes:
        chunk = await self._chunks.get()
        self._ahead.release()
        if isinstance(chunk, OSError):
            raise chunk
        return chunk

    def _read(self) -> None:
        while True:
            self._ahead.acquire()
            chunk: bytes | OSError
            try:
                chunk = os.read(self._descriptor, _CHUNK_BYTES)
            except OSError as error:
                chunk = error
            try:
                self._loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)
            except RuntimeError:  # The loop is closed: nobody wants the rest.
                return
            if not chunk or isinstance(chunk, OSError):
                return
