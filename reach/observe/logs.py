"""The access log: one JSON line a call, which never holds the call up (behaviour SEE-1).

Failures are always written, successes as a sample (1 %, changeable while running). Lines go to the logger
`reach.access` (failures as WARNING, successes as INFO) from a thread of their own, so whatever handlers an
application has put there may be as slow as they like. Without any handler nothing is printed: a library
does not write on its user's terminal unasked.
"""

from __future__ import annotations

import logging
from typing import IO, Final

from reach.observe.jsonline import encode
from reach.observe.writer import PATIENCE_S, BackgroundWriter
from reach.wire.record import ReachRecord

ACCESS: Final = "reach.access"
"""Name of the logger."""

SUCCESS_SAMPLE: Final = 0.01
"""Share of successes that is written (SEE-1)."""

_logger = logging.getLogger(ACCESS)
_logger.addHandler(logging.NullHandler())


class AccessLog:
    """Writes the access line of each call that failed, and of a share of the others."""

    def __init__(self, *, success_sample: float = SUCCESS_SAMPLE, queue_limit: int = 20_000) -> None:
        self._owed = 0.0
        self.success_sample = success_sample
        self._writer: BackgroundWriter[tuple[int, ReachRecord]] = BackgroundWriter(
            _emit, name="reach access log", limit=queue_limit
        )

    @property
    def success_sample(self) -> float:
        """Share of successes that is written, 0 to 1; may be set at any time. Raises `ValueError` outside."""
        return self._success_sample

    @success_sample.setter
    def success_sample(self, share: float) -> None:
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"the share of successes is a number from 0 to 1, not {share!r}")
        self._success_sample = share

    @property
    def lost(self) -> int:
        """How many lines found no room in the queue."""
        return self._writer.lost

    def wants(self, *, ok: bool) -> bool:
        """Count a call that ended; whether its line is written. Ask once a call."""
        if not ok:
            return _logger.isEnabledFor(logging.WARNING)
        self._owed += self._success_sample
        if self._owed < 1.0:
            return False
        self._owed -= 1.0
        return _logger.isEnabledFor(logging.INFO)

    def put(self, record: ReachRecord) -> None:
        """Write the line of a record that `wants` asked for. Never blocks."""
        self._writer.put((logging.INFO if record.outcome == "ok" else logging.WARNING, record))

    def write(self, record: ReachRecord) -> None:
        """Write the line of a record if its turn is now."""
        if self.wants(ok=record.outcome == "ok"):
            self.put(record)

    def flush(self, timeout_s: float = PATIENCE_S) -> bool:
        """Wait until everything so far is written (blocks; for ends of programs and tests)."""
        return self._writer.flush(timeout_s)

    def close(self) -> None:
        """Write what is queued and end."""
        self._writer.close()


def access_line(record: ReachRecord) -> str:
    """Give the JSON line of a call: the fields of SEE-1, and when it began (`at`, epoch milliseconds)."""
    return encode(
        {
            "at": record.at,
            "trace_id": record.trace_id,
            "reach_id": record.reach_id,
            "capability": record.capability,
            "provider": record.provider,
            "instance": record.instance,
            "attempt": max(1, len(record.attempts)),
            "ok": record.outcome == "ok",
            "error_code": record.code,
            "reason": record.reason,
            "latency_ms": record.latency_ms,
            "degrade_level": record.degrade_level,
            "caller": record.caller,
            "tenant": record.tenant,
        }
    )


def show_access(stream: IO[str], *, level: int = logging.INFO) -> logging.Handler:
    """Print access lines on `stream`, bare, from `level` up; give the handler, for `hide_access`.

    For programs (the command line, an agent's own process); an application configures `logging` as it likes.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    handler.setLevel(level)
    _logger.addHandler(handler)
    _logger.setLevel(min(level, _logger.level or level))
    return handler


def hide_access(handler: logging.Handler) -> None:
    """Take back `show_access`."""
    _logger.removeHandler(handler)
    _logger.setLevel(logging.NOTSET)


def _emit(batch: list[tuple[int, ReachRecord]], lost: int) -> None:
    for level, record in batch:
        _logger.log(level, "%s", access_line(record))
    if lost:
        _logger.warning("%s", encode({"gap": {"lost": lost}}))
