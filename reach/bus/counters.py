"""What all callers together count: numbers that only the broker adds up, and small values changed by compare-and-set.

A number (`add`) is a counter of JetStream (ADR-49): whoever adds learns what it is now, exactly, however many add at
once. A value (`read`, `write`) is an entry of the bucket `reach_quota`: written only if it is still what was read,
and gone by itself. Both say within a second whether they can be had at all, and for a moment after they could not,
nobody needs to ask (`Outage`).
"""

from __future__ import annotations

import hashlib
import logging
import math
from time import monotonic
from typing import TYPE_CHECKING, Final

from reach.bus.jetstream import JetStream, Unacknowledged
from reach.bus.permissions import QUOTA_BUCKET
from reach.errors import LinkDown, NameRefused, ReachError
from reach.wire import names

if TYPE_CHECKING:
    from reach.bus.connection import Connection

_log = logging.getLogger("reach.bus")

ANSWER_S: Final = 1.0
"""How long the broker may take: a call waits for it."""

DOWN_S: Final = 2.0
"""For so long a store that did not answer, or is not there, is not asked again."""

LINK_S: Final = 0.2
"""The same where it was our own link that was not there."""

STREAM: Final = f"KV_{QUOTA_BUCKET}"

_GONE: Final = (b"KV-Operation:", b"Nats-Marker-Reason:")


class StoreDownError(Exception):
    """The broker does not count for us at present; the text says why."""


class Outage:
    """Whether something can be had at present; told in the log once when it begins, and once when it has ended."""

    def __init__(self, what: str) -> None:
        self.until = 0.0
        """When it may be tried again, in loop seconds."""
        self._what = what
        self._told = False

    @property
    def is_on(self) -> bool:
        """Whether it need not be tried."""
        return monotonic() < self.until

    def begin(self, error: Exception) -> StoreDownError:
        """Note that it cannot be had, and give the error to raise."""
        self.until = monotonic() + (LINK_S if isinstance(error, LinkDown) else DOWN_S)
        down = StoreDownError(_why(error))
        if not self._told:
            self._told = True
            _log.warning("%s cannot be counted (%s): this process admits its own share", self._what, down)
        return down

    def end(self) -> None:
        """Note that it was had."""
        if self._told:
            self._told = False
            _log.info("%s is counted again", self._what)


class SharedCounts:
    """Both, for one client; nothing is listened to before the first use. Close it before its connection."""

    def __init__(self, connection: Connection) -> None:
        self.numbers = Outage("what tasks spend together")
        self.values = Outage("what all callers together take of a rate")
        self._connection = connection
        self._made: JetStream | None = None

    async def add(self, subject: str, by: int) -> int:
        """Add to a number, and give what it is now. Raises `StoreDownError`: then it may have been added, or not."""
        try:
            total = await self._jetstream.count(subject, by, timeout_s=ANSWER_S)
        except (Unacknowledged, LinkDown, ReachError, ValueError) as error:
            raise self.numbers.begin(error) from error
        self.numbers.end()
        return total

    async def read(self, key: str) -> tuple[bytes, int]:
        """Give a value and its sequence; nothing, where there is none. Raises `StoreDownError`."""
        try:
            stored = await self._jetstream.message(
                STREAM, {"last_by_subj": f"$KV.{QUOTA_BUCKET}.{key}"}, timeout_s=ANSWER_S
            )
        except (LinkDown, ReachError) as error:
            raise self.values.begin(error) from error
        self.values.end()
        if stored is None:
            return b"", 0
        return b"" if any(word in stored.headers for word in _GONE) else stored.data, stored.sequence

    async def write(self, key: str, data: bytes, *, sequence: int, kept_s: float) -> int:
        """Write a value for `kept_s` seconds in the place of the one at `sequence`, and give its own.

        Raises `GuardRefused` where it is another by now, `StoreDownError` where it may have been written, or not.
        """
        subject = f"$KV.{QUOTA_BUCKET}.{key}"
        try:
            return await self._jetstream.publish(
                subject,
                data,
                guard=(subject, sequence),
                headers={"Nats-TTL": f"{math.ceil(kept_s)}s"},
                timeout_s=ANSWER_S,
            )
        except (Unacknowledged, LinkDown, ReachError) as error:
            raise self.values.begin(error) from error

    def close(self) -> None:
        """Settle what waits, and listen no more."""
        if self._made is not None:
            self._made.close()
            self._made = None

    @property
    def _jetstream(self) -> JetStream:
        if self._made is None:
            self._made = JetStream(self._connection)
        return self._made


def token(name: str) -> str:
    """Give a name as one token: itself, or a digest where somebody sent us one that cannot stand in a subject."""
    try:
        return names.token(name)
    except NameRefused:
        return hashlib.sha256(name.encode(errors="replace")).hexdigest()[:32]


def _why(error: Exception) -> str:
    if isinstance(error, Unacknowledged):
        return "JetStream did not answer"
    return str(error) or "the link is down"
