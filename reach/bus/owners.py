"""Whether an instance that has a call is still there: by asking it, and by what the supervisor wrote down (IDEM-3).

An instance answers `ctl.<instance>.ping` until its connection ends, also while it drains. One that is not there is gone
when its card says that it ended, or else when it stays away for longer than a link takes to come back; one that is
silent when its card says so, or when it was silent for as long as its lease: until then it is watched, whether or not
a call still waits for it, since a process that is stopped holds its connection and may wake. Without a supervisor only
the answers count.

==============  =======================  ===============================================================
what            number                   where it comes from
==============  =======================  ===============================================================
an answer       0.5 s                    ours: an instance answers in a millisecond, a busy loop in more
asked again     after 0.25 s             ours: everybody who waits shares one question
not there       3.5 s                    ours: a link is tried again after 3 s at the latest
silent          its lease (30 s)         LIFE-1
==============  =======================  ===============================================================
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

from reach.bus.jetstream import JetStream
from reach.bus.translate import denied_subject
from reach.errors import CallTimeout, LinkDown, ReachError, SchemaInvalid, Unreachable
from reach.policy.idempotency import Owner
from reach.wire import codec, subjects
from reach.wire.registration import CARDS, CardEntry, read_message

if TYPE_CHECKING:
    from reach.bus.connection import Connection

ANSWER_S: Final = 0.5
AGAIN_S: Final = 0.25
ABSENT_S: Final = 3.5
CARD_S: Final = 1.0

WATCHES: Final = 10
"""How often a silent instance is asked within its lease."""

MAX_KNOWN: Final = 4096
"""Instances that are remembered; more than call each other here."""


class _Seen:
    """What was heard of one start of an instance. Times are monotonic seconds."""

    __slots__ = ("absent_since", "asked_at", "owner", "silent_since", "watch")

    def __init__(self) -> None:
        self.owner = Owner.SILENT
        self.asked_at = -AGAIN_S
        self.absent_since: float | None = None
        self.silent_since: float | None = None
        self.watch: asyncio.Task[None] | None = None  # Owned: close() ends and awaits it.


class Owners:
    """The instances that have calls which others wait for, as one connection sees them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._jetstream = JetStream(connection)
        self._seen: dict[tuple[str, int], _Seen] = {}
        self._asking: dict[tuple[str, int], asyncio.Task[Owner]] = {}
        self._may_ask = True
        connection.denials.append(self._on_denied)

    async def state(self, instance: str, generation: int, *, lease_ttl_s: float) -> Owner:
        """Give what is known of an instance now; asks it where that was not done a moment ago."""
        name = (instance, generation)
        seen = self._seen.get(name)
        if seen is not None and monotonic() - seen.asked_at < AGAIN_S:
            return seen.owner
        asking = self._asking.get(name)
        if asking is None:
            asking = asyncio.create_task(self._ask(name, lease_ttl_s), name=f"is {instance} there?")
            self._asking[name] = asking
            asking.add_done_callback(lambda _: self._asking.pop(name, None))
        return await asyncio.shield(asking)

    async def close(self) -> None:
        """Ask no more."""
        if self._on_denied in self._connection.denials:
            self._connection.denials.remove(self._on_denied)
        tasks = [
            *self._asking.values(),
            *(seen.watch for seen in self._seen.values() if seen.watch is not None),
        ]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._jetstream.close()

    # -- asking --------------------------------------------------------------------------------------

    async def _ask(self, name: tuple[str, int], lease_ttl_s: float) -> Owner:
        if len(self._seen) >= MAX_KNOWN:
            self._forget()
        seen = self._seen.setdefault(name, _Seen())
        seen.owner = await self._look(name, seen, lease_ttl_s)
        seen.asked_at = monotonic()
        if seen.silent_since is not None and seen.owner is Owner.SILENT and seen.watch is None:
            seen.watch = asyncio.create_task(self._watch(name, seen, lease_ttl_s), name=f"watch of {name[0]}")
        return seen.owner

    async def _look(self, name: tuple[str, int], seen: _Seen, lease_ttl_s: float) -> Owner:
        began = monotonic()
        try:
            answers = await self._ping(name)
        except Unreachable:
            seen.silent_since = None
            seen.absent_since = began if seen.absent_since is None else seen.absent_since
            if monotonic() - seen.absent_since >= ABSENT_S:
                return Owner.GONE
        except CallTimeout:
            seen.absent_since = None
            seen.silent_since = began if seen.silent_since is None else seen.silent_since
            if monotonic() - seen.silent_since >= lease_ttl_s:
                return Owner.GONE
        except (LinkDown, ReachError):
            # It is ourselves who hear nothing.
            seen.absent_since = seen.silent_since = None
            return Owner.SILENT
        else:
            seen.absent_since = seen.silent_since = None
            if answers is not None:
                return Owner.ALIVE if answers else Owner.GONE
        return Owner.GONE if await self._has_ended(name) else Owner.SILENT

    async def _ping(self, name: tuple[str, int]) -> bool | None:
        """Whether the very start of an instance answers, or a newer one; None where we may not ask."""
        if self._is_deaf():
            return None
        instance, generation = name
        try:
            data = await self._connection.request(subjects.ctl(instance, "ping"), b"", timeout_s=ANSWER_S)
        except CallTimeout:
            if self._is_deaf():
                return None
            raise
        try:
            return bool(codec.unpack(data).get("generation") == generation)
        except SchemaInvalid:
            return None

    def _is_deaf(self) -> bool:
        """Whether the broker does not let this client ask."""
        return not self._may_ask

    async def _has_ended(self, name: tuple[str, int]) -> bool:
        """Whether the supervisor wrote down that it ended, or that it started anew."""
        instance, generation = name
        wish = {"last_by_subj": f"$KV.{CARDS}.{instance}"}
        try:
            async with asyncio.timeout(CARD_S):
                stored = await self._jetstream.message(f"KV_{CARDS}", wish)
            entry = None if stored is None else read_message(codec.unpack(stored.data), CardEntry)
        except (TimeoutError, LinkDown, ReachError):
            return False
        if entry is None:
            return False
        newer = entry.card.generation > generation
        return newer or (entry.card.generation == generation and not entry.present)

    async def _watch(self, name: tuple[str, int], seen: _Seen, lease_ttl_s: float) -> None:
        """Ask a silent instance now and then, until it is heard or its lease is over."""
        try:
            while seen.owner is Owner.SILENT and seen.silent_since is not None:
                await asyncio.sleep(lease_ttl_s / WATCHES)
                seen.owner = await self._look(name, seen, lease_ttl_s)
                seen.asked_at = monotonic()
        finally:
            seen.watch = None

    def _forget(self) -> None:
        """Let go of whatever nobody watches."""
        for name in [name for name, seen in self._seen.items() if seen.watch is None]:
            del self._seen[name]

    def _on_denied(self, text: str) -> None:
        denied = denied_subject(text)
        if denied is not None and denied[0] == "publish":
            kind, *_, verb = denied[1].lower().split(".")
            if kind == "ctl" and verb == "ping":
                self._may_ask = False  # Silence says nothing then: the supervisor's word alone counts.
