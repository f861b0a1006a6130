"""A file of lines that does not grow without end, written by several processes at once.

Each batch is one `write` in append mode, so lines of different processes do not mix. Whoever finds the file
too long renames it to `<name>.1<suffix>` under a lock and begins anew; the others notice, before their next
batch, that the path is another file now. The file is readable by its owner alone.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 64 * 1024 * 1024
"""The size at which a file is put aside; one older file is kept, so a log takes at most about twice this."""


class RotatingFile:
    """Append batches of lines to `path`. Every method may raise `OSError`."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._fd: int | None = None

    @property
    def older(self) -> Path:
        """Where the file goes when it is full."""
        return self.path.with_name(f"{self.path.stem}.1{self.path.suffix}")

    def open(self) -> int:
        """Open the file (and make its folder) unless it is open, and still the one that the path names."""
        if self._fd is not None and self._is_current(self._fd):
            return self._fd
        self.close()
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._fd

    def append(self, lines: bytes) -> None:
        """Write whole lines at the end; afterwards put the file aside if it is long enough."""
        fd = self.open()
        view = memoryview(lines)
        while view:
            view = view[os.write(fd, view) :]
        if os.fstat(fd).st_size >= self._max_bytes:
            self._put_aside(fd)

    def close(self) -> None:
        """Close the file; the next batch opens it again."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _is_current(self, fd: int) -> bool:
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        here = os.fstat(fd)
        return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)

    def _put_aside(self, fd: int) -> None:
        # The lock is on the file itself and ends with it; whoever comes second sees that the path moved on.
        fcntl.flock(fd, fcntl.LOCK_EX)
        if self._is_current(fd):
            self.path.replace(self.older)
        self.close()
