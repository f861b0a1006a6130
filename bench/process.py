"""A peer seen from the orchestrator: a child process that takes orders on a pipe.

Its processor time is read from the system (Linux only; elsewhere it is not known).
"""

import json
import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

START_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 10.0


class PeerFailed(Exception):
    """A peer ended, was silent for too long, or said something that is no answer."""


class PeerProcess:
    """Starts on construction; `wait_ready` before the first order, `end` after the last."""

    def __init__(self, name: str, command: Sequence[str], *, env: Mapping[str, str], log: Path) -> None:
        self.name = name
        self._log = log
        self._buffer = b""
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=dict(env)
            )
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("a peer was started without its pipes")
        self._orders, self._answers = self._process.stdin, self._process.stdout
        os.set_blocking(self._answers.fileno(), False)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def wait_ready(self) -> None:
        """Wait until it serves. Raises `PeerFailed`."""
        self._read(START_TIMEOUT_S)

    def ask(self, order: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Give an order and wait for the answer. Raises `PeerFailed`."""
        self.tell(order)
        return self.hear(timeout_s)

    def tell(self, order: dict[str, Any]) -> None:
        """Give an order. Raises `PeerFailed`."""
        try:
            self._orders.write(json.dumps(order).encode() + b"\n")
            self._orders.flush()
        except BrokenPipeError:
            raise PeerFailed(self._ended()) from None

    def hear(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the answer to an order. Raises `PeerFailed`."""
        return self._read(timeout_s)

    def end(self) -> None:
        """Let it end, and see that it does; may be called again."""
        self._orders.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def _read(self, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise PeerFailed(f"{self.name} said nothing for {timeout_s:.0f} s.{self._tail()}")
                chunk = self._answers.read(65536)
                if not chunk:
                    raise PeerFailed(self._ended())
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer = json.loads(line)
        if not isinstance(answer, dict):
            raise PeerFailed(f"{self.name} answered {line!r}")
        if "error" in answer:
            raise PeerFailed(f"{self.name}: {answer['error']}")
        return answer

    def _ended(self) -> str:
        return f"{self.name} ended by itself.{self._tail()}"

    def _tail(self) -> str:
        lines = self._log.read_text("utf-8", "replace").splitlines()[-8:]
        return "\n  " + "\n  ".join(lines) if lines else " It left no message."


def cpu_seconds(pid: int) -> float | None:
    """Give the processor time that a process has used, all its threads; None where the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # What precedes it, the name, may hold blanks.
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int | None:
    """Give the memory that a process holds; None where the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/statm").read_text("ascii")
    except OSError:
        return None
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")
