"""One record a call, kept without slowing the call down (behaviour SEE-3).

Up to `rate_per_s` (500 a second) everything is kept. Above it successes are thinned to every second, fourth,
eighth … one, and `sample_rate` stands in each record kept then, so that the sum of `1 / sample_rate` is the
number of calls; failures and cancelled calls are always kept. What the queue or the disk had no room for is
counted, and the count is written as a line of its own, `{"gap": {"lost": n}}`, once there is room again.

A *sink* takes what is kept: lines in a file that is rotated, a stream, memory (for tests), nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

from reach.clock import SYSTEM, Clock
from reach.errors import ConfigError
from reach.observe.jsonline import encode
from reach.observe.logs import AccessLog
from reach.observe.rotation import RotatingFile
from reach.observe.writer import PATIENCE_S, BackgroundWriter
from reach.wire.record import ReachRecord

RATE_PER_S: Final = 500
"""Records a second and process that are kept in full (SEE-3)."""

FILE_NAME: Final = "records.jsonl"
SETTING: Final = "REACH_RECORDS"
"""Where records go: a path, `stderr`, or `off`. Unset means `records.jsonl` in the state folder."""


_STILL_TELLING_S: Final = 2.0
"""A second that began longer ago than this says nothing about the one that begins now."""


@dataclass(slots=True)
class Kept:
    """A record and the share of its like that is kept: 1.0, or less for thinned successes."""

    record: ReachRecord
    sample_rate: float = 1.0

    def line(self) -> str:
        """Give the JSON line, without a line end."""
        body = self.record.to_map()
        if self.sample_rate != 1.0:
            body["sample_rate"] = self.sample_rate
        return encode(body)


class Sink(Protocol):
    """Takes what is kept. `write` runs in a thread of its own, unless the sink is `immediate`."""

    immediate: bool
    """Whether `write` is quick enough to be called within the call itself."""

    def write(self, kept: Sequence[Kept], lost: int) -> None:
        """Take a batch; `lost` records before it were dropped. May raise: the batch then counts as lost."""
        ...

    def close(self) -> None:
        """Nothing follows."""
        ...


class NullSink:
    """Keeps nothing."""

    immediate = True

    def write(self, kept: Sequence[Kept], lost: int) -> None:
        """Forget the batch."""

    def close(self) -> None:
        """Nothing to end."""


class MemorySink:
    """Keeps everything in `records`, in order, at once; for tests."""

    immediate = True

    def __init__(self) -> None:
        self.kept: list[Kept] = []
        self.lost = 0

    @property
    def records(self) -> list[ReachRecord]:
        """The records alone."""
        return [kept.record for kept in self.kept]

    def write(self, kept: Sequence[Kept], lost: int) -> None:
        """Keep the batch."""
        self.kept += kept
        self.lost += lost

    def close(self) -> None:
        """Keep what is there."""


class JsonLinesSink:
    """One JSON object a line, into a file (rotated at 64 MiB, one older file kept) or an open text stream."""

    immediate = False

    def __init__(self, target: Path | str | IO[str]) -> None:
        self._file = RotatingFile(Path(target)) if isinstance(target, Path | str) else None
        self._stream = None if isinstance(target, Path | str) else target

    def write(self, kept: Sequence[Kept], lost: int) -> None:
        """Write a batch. Raises `OSError` when the disk does not take it."""
        lines = [item.line() for item in kept]
        if lost:
            lines.insert(0, encode({"gap": {"lost": lost}}))
        text = "\n".join(lines) + "\n"
        if self._file is not None:
            self._file.append(text.encode("utf-8", "backslashreplace"))
        elif self._stream is not None:
            self._stream.write(text)
            self._stream.flush()

    def probe(self) -> None:
        """Open the file now, so that a wrong path is told at the start. Raises `OSError`."""
        if self._file is not None:
            self._file.open()

    def close(self) -> None:
        """Close the file; a stream that was handed in stays open."""
        if self._file is not None:
            self._file.close()


def sink_for(setting: str | None, *, folder: Path | None) -> Sink:
    """Give the sink that `REACH_RECORDS` asks for; unset means a file in `folder`, or none without a folder.

    Raises `ConfigError` when the file cannot be written.
    """
    match (setting or "").strip():
        case "off":
            return NullSink()
        case "stderr":
            return JsonLinesSink(sys.stderr)
        case "":
            return NullSink() if folder is None else _file_sink(folder / FILE_NAME)
        case path:
            return _file_sink(Path(path).expanduser())


def _file_sink(path: Path) -> JsonLinesSink:
    sink = JsonLinesSink(path)
    try:
        sink.probe()
    except OSError as error:
        raise ConfigError(
            f"{SETTING}: {path} cannot be written ({error.strerror}). "
            f"Right would be a path in a folder of yours, `stderr`, or `off`."
        ) from error
    return sink


class Thinning:
    """Decides which successes are kept: every `every`-th, so that a second keeps about `share_per_s`.

    `every` is a power of two, chosen from the second before. When a burst uses the share up within a second,
    `every` doubles with each further sixteenth of the share: 40 000 calls in one second out of nothing keep
    some 800. A kept record stands for itself and the `every - 1` after it, across seconds too, so that sums
    over `1 / sample_rate` are exact but for the group that is under way.
    """

    __slots__ = ("_admitted", "_begun", "_next_step", "_seen", "_share", "_skip", "every")

    def __init__(self, share_per_s: int) -> None:
        self._share = max(1, share_per_s)
        self._begun = float("-inf")
        self._seen = 0
        self._admitted = 0
        self._next_step = self._share
        self._skip = 0
        self.every = 1

    def keep(self, now: float) -> bool:
        """Count one success at `now` (monotonic seconds); whether it is kept."""
        if now - self._begun >= 1.0:
            self._begin(now)
        self._seen += 1
        if self._skip:
            self._skip -= 1
            return False
        self._admitted += 1
        if self._admitted > self._next_step:
            self._next_step += max(1, self._share // 16)
            self.every *= 2
        self._skip = self.every - 1
        return True

    def _begin(self, now: float) -> None:
        expected = self._seen if now - self._begun < _STILL_TELLING_S else 0
        self.every = 1
        while expected > self._share * self.every:
            self.every *= 2
        self._begun = now
        self._seen = 0
        self._admitted = 0
        self._next_step = self._share


class Recorder:
    """Takes one record a call, for the sink and for the access log: what each of them wants of it.

    `wants` and `put`, or `write` for both, cost the loop a few microseconds at most. `rate_per_s` bounds the
    successes that are kept in full, `queue_limit` what waits for the sink; `access` is an `AccessLog` with its
    own defaults unless one is given.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        access: AccessLog | None = None,
        rate_per_s: int = RATE_PER_S,
        queue_limit: int = 20_000,
        clock: Clock = SYSTEM,
    ) -> None:
        self.sink = sink
        self.access = AccessLog() if access is None else access
        self._keeps = not isinstance(sink, NullSink)
        # What `wants` last said yes for; `put` follows at once, in the same thread.
        self._for_sink = False
        self._for_access = False
        self._thinning = Thinning(rate_per_s)
        self._now = clock.monotonic
        self._writer: BackgroundWriter[Kept] | None = None
        if not sink.immediate:
            self._writer = BackgroundWriter(sink.write, name="reach records", limit=queue_limit)

    @property
    def lost(self) -> int:
        """How many records were dropped since the start: no room in the queue, or on the disk."""
        return 0 if self._writer is None else self._writer.lost

    def wants(self, *, ok: bool, now: float | None = None) -> bool:
        """Count a call that ended; whether anybody wants its record. Ask once a call, before building it.

        `now` is the monotonic clock's time where the caller has it at hand.
        """
        self._for_sink = self._keeps and (not ok or self._thinning.keep(self._now() if now is None else now))
        self._for_access = self.access.wants(ok=ok)
        return self._for_sink or self._for_access

    def put(self, record: ReachRecord) -> None:
        """Hand on the record that `wants` just asked for."""
        if self._for_access:
            self.access.put(record)
        if not self._for_sink:
            return
        rate = 1.0 / self._thinning.every if record.outcome == "ok" else 1.0
        kept = Kept(record, rate)
        if self._writer is None:
            self.sink.write((kept,), 0)
        else:
            self._writer.put(kept)

    def write(self, record: ReachRecord) -> None:
        """Hand on a record if anybody wants it."""
        if self.wants(ok=record.outcome == "ok"):
            self.put(record)

    def flush(self, timeout_s: float = PATIENCE_S) -> bool:
        """Wait until everything kept so far is written (blocks; for ends of programs and tests)."""
        written = self._writer is None or self._writer.flush(timeout_s)
        return self.access.flush(timeout_s) and written

    def close(self) -> None:
        """Write what is queued, close the sink and the access log. Nothing is lost that was put before."""
        if self._writer is not None:
            self._writer.close()
        self.sink.close()
        self.access.close()
