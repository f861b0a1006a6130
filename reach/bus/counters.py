"""What all callers together count: numbers that only the broker adds up, and small values changed by compare-and-set.

A number (`add`) is a counter of JetStream (ADR-49): whoever adds learns what it is now, exactly, however many add at
once. A value (`read`, `write`) is an entry of the bucket `reach_quota`: written only if it is still what was read,
and gone by itself. Both say within a second whether they can be had at all.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Final

from reach.bus.jetstream import JetStream, Unacknowledged
from reach.bus.permissions import QUOTA_BUCKET
from reach.errors import LinkDown, NameRefused, ReachError
from reach.wire import names

if TYPE_CHECKING:
    from reach.bus.connection import Connection

ANSWER_S: Final = 1.0
"""How long the broker may take: a call waits for it."""

STREAM: Final = f"KV_{QUOTA_BUCKET}"

_GONE: Final = (b"KV-Operation:", b"Nats-Marker-Reason:")


class StoreDownError(Exception):
    """The broker does not count for us at present; the text says why."""


class SharedCounts:
    """Both, for one client; nothing is listened to before the first use. Close it before its connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._made: JetStream | None = None

    async def add(self, subject: str, by: int) -> int:
        """Add to a number, and give what it is now. Raises `StoreDownError`: then it may have been added, or not."""
        try:
            return await self._jetstream.count(subject, by, timeout_s=ANSWER_S)
        except (Unacknowledged, LinkDown, ReachError, ValueError) as error:
            raise StoreDownError(_why(error)) from error

    async def read(self, key: str) -> tuple[bytes, int]:
        """Give a value and its sequence; nothing, where there is none. Raises `StoreDownError`."""
        try:
            stored = await self._jetstream.message(
                STREAM, {"last_by_subj": f"$KV.{QUOTA_BUCKET}.{key}"}, timeout_s=ANSWER_S
            )
        except (LinkDown, ReachError) as error:
            raise StoreDownError(_why(error)) from error
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
            raise StoreDownError(_why(error)) from error

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
