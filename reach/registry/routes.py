"""The routing table as a caller has it: a mirror of the bucket `reach_routes` in memory.

The leading supervisor writes one entry a capability; this reads all of them once and follows what changes, over
outages too. Nothing waits for it: without the bucket, or without the right to read it, there is no table, and callers
do as they would without a supervisor. When the link or the leader is gone the last table holds on (fail-static), and
its age grows. An entry is read as late as somebody asks for its capability, and from then on at each change.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import logging
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from reach.bus.connection import LinkState
from reach.bus.feed import Begin, Feed
from reach.bus.jetstream import JetStream
from reach.chance import random
from reach.errors import LinkDown, ReachError
from reach.policy.inherit import Inheritance, Mode
from reach.wire import codec
from reach.wire.registration import INHERIT_KEY, ROUTES, InheritEntry, capability_of_key, read_message
from reach.wire.route import RouteEntry

if TYPE_CHECKING:
    from collections.abc import Callable

    from reach.bus.connection import Connection
    from reach.bus.feed import Arrived

_log = logging.getLogger("reach.call")

AGAIN_S: Final = (0.5, 2.0, 5.0, 15.0)
"""Pauses, spread by half, until a table that could not be read is looked for again."""

MAX_WANTED: Final = 20_000
"""Capabilities whose entries are read at each change; of more, none is kept in parsed form."""

_STREAM: Final = f"KV_{ROUTES}"
_KEYS: Final = f"$KV.{ROUTES}."
_READ: Final = (f"{_KEYS}cap.>", _KEYS + INHERIT_KEY)
_GONE: Final = ("KV-Operation", "Nats-Marker-Reason")
"""Headers of a message that says that a key holds nothing any more."""


class Routes:
    """The table of one client. `start` it at the first call; it ends with `close`.

    `known` says that it was read as a whole at least once. `garbage` counts entries that could not be read.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._raw: dict[str, bytes] = {}
        self._entries: dict[str, RouteEntry] = {}
        self._wanted: set[str] = set()
        self._followers: list[Callable[[str, RouteEntry | None], None]] = []
        self._rule_followers: list[Callable[[], None]] = []
        self._seen: set[str] = set()
        self._created = ""
        self._jetstream: JetStream | None = None
        self._feed: Feed | None = None
        self._task: asyncio.Task[None] | None = None  # Owned, as the next: close() ends and awaits both.
        self._check: asyncio.Task[None] | None = None
        self._read_once = asyncio.Event()
        self._tried_once = asyncio.Event()
        self._confirmed = 0.0
        self._is_whole = False
        self._closed = False
        self.garbage = 0
        self.inheritance = Inheritance(Mode.OFF)
        """How more general providers count, as the leader has written it down."""
        self.leaderless = False
        """Whether nobody leads, as whoever asked was told last: then nobody writes the table either."""

    # -- from memory ---------------------------------------------------------------------------------

    @property
    def known(self) -> bool:
        """Whether there is a table."""
        return self._read_once.is_set()

    @property
    def complete(self) -> bool:
        """Whether what is not in the table never was there: it has entries, and somebody keeps it."""
        return self.known and bool(self._raw) and not self.leaderless

    def entry(self, capability: str) -> RouteEntry | None:
        """Give what the table says of a capability; whoever follows hears of its changes from now on."""
        found = self._entries.get(capability)
        if found is None and len(self._wanted) < MAX_WANTED:
            self._wanted.add(capability)
        if found is None and capability in self._raw:
            found = self._parse(capability, self._raw[capability])
            if found is not None:
                self._entries[capability] = found
        return found

    def registered(self, capability: str) -> bool:
        """Whether anybody ever served a capability, as far as the table knows."""
        return capability in self._raw

    def nearest(self, name: str) -> list[str]:
        """Give the capability names that look most like `name`, best first, at most three."""
        return difflib.get_close_matches(name, self._raw, n=3)

    def age_s(self, now: float) -> float | None:
        """Give how long ago (loop seconds) the table was last known to be what the leader says; None without one."""
        if not self.known:
            return None
        if self._feed is not None and self._feed.alive and not self.leaderless:
            self._confirmed = now
        return now - self._confirmed

    def on_change(self, follower: Callable[[str, RouteEntry | None], None]) -> None:
        """Have `follower` called with each entry that is another now, of those that were asked for."""
        self._followers.append(follower)

    def on_rule(self, follower: Callable[[], None]) -> None:
        """Have `follower` called when `inheritance` is another one."""
        self._rule_followers.append(follower)

    # -- life ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read, if that was not done before."""
        if self._task is None and not self._closed:
            self._jetstream = JetStream(self._connection)
            self._connection.on_state(self._on_state)
            self._task = asyncio.get_running_loop().create_task(self._keep(), name="reach routing table")

    async def tried(self, timeout_s: float) -> bool:
        """Wait until it was read, or could not be, at most so long; whether there is a table."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._tried_once.wait()
        return self.known

    async def ready(self, timeout_s: float) -> bool:
        """Wait until the table is there, at most so long; whether it is."""
        if not self.known:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._read_once.wait()
        return self.known

    async def close(self) -> None:
        """End; what is known stays readable."""
        self._closed = True
        if self._jetstream is None:
            return
        self._connection.off_state(self._on_state)
        for task in (self._check, self._task):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        self._jetstream.close()

    # -- reading -------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        tries = 0
        while True:
            try:
                await self._read()
            except (LinkDown, ReachError) as error:
                _log.debug("no routing table: %s", error)
            self._tried_once.set()
            if self.known:
                tries = 0
            pause_s = AGAIN_S[min(tries, len(AGAIN_S) - 1)]
            tries += 1
            await asyncio.sleep(pause_s * (0.5 + random()))

    async def _read(self) -> None:
        """Read all of it, then what changes, for ever. Raises `ReachError`, `LinkDown`."""
        if self._jetstream is None:
            return
        feed = Feed(
            self._connection,
            self._jetstream,
            _STREAM,
            list(_READ),
            Begin(sequence=1),
        )
        try:
            await feed.open()
            created = await self._created_at()
            fresh, self._created = created != self._created, created
            self._seen = set()
            self._feed = feed
            if feed.caught_up:
                self._whole()
            async for arrived in feed:
                self._take(arrived, fresh=fresh and not self._is_whole)
                if feed.caught_up and not self._is_whole:
                    self._whole()
        finally:
            self._is_whole = False
            self._feed = None
            feed.close()

    def _whole(self) -> None:
        """Everything was read: what was not there is there no more."""
        self._is_whole = True
        for capability in self._raw.keys() - self._seen:
            self._drop(capability)
        self._seen = set()
        self._confirmed = monotonic()
        self._read_once.set()
        self._tried_once.set()

    async def _created_at(self) -> str:
        """Give when the bucket was made: one that is new begins to count anew."""
        if self._jetstream is None:
            return ""
        answer: dict[str, Any] = await self._jetstream.api(f"STREAM.INFO.{_STREAM}", {})
        return str(answer.get("created", ""))

    def _on_state(self, state: LinkState) -> None:
        if state is LinkState.CONNECTED and self._feed is not None and self._check is None:
            self._check = asyncio.get_running_loop().create_task(self._look(), name="reach table check")

    async def _look(self) -> None:
        """After an outage: read everything anew where the bucket is not the one that was read."""
        try:
            created = await self._created_at()
        except (LinkDown, ReachError):
            return  # The next link asks again.
        finally:
            self._check = None
        if created != self._created and self._task is not None and not self._closed:
            self._task.cancel()
            await asyncio.wait({self._task})
            if not self._closed:
                self._task = asyncio.get_running_loop().create_task(self._keep(), name="reach routing table")

    # -- entries -------------------------------------------------------------------------------------

    def _take(self, arrived: Arrived, *, fresh: bool) -> None:
        capability = capability_of_key(arrived.subject.removeprefix(_KEYS))
        if capability is None:
            if arrived.subject == _KEYS + INHERIT_KEY:
                self._take_rule(arrived)
            return
        if any(header in arrived.headers for header in _GONE):
            self._drop(capability)
            return
        self._seen.add(capability)
        if capability not in self._wanted:
            self._raw[capability] = arrived.data  # Delivered in the order in which it was written.
            self._entries.pop(capability, None)
            return
        entry = self._parse(capability, arrived.data)
        if entry is None or not (fresh or entry.supersedes(self._entries.get(capability))):
            return
        self._raw[capability] = arrived.data
        self._entries[capability] = entry
        self._tell(capability, entry)

    def _take_rule(self, arrived: Arrived) -> None:
        try:
            told = read_message(codec.unpack(arrived.data), InheritEntry) if arrived.data else InheritEntry()
        except ReachError as error:
            self.garbage += 1
            _log.warning("how more general providers count cannot be read: %s", error)
            return
        rule = Inheritance(Mode(told.mode), told.parents)
        if rule != self.inheritance:
            self.inheritance = rule
            for follower in self._rule_followers:
                follower()

    def _parse(self, capability: str, data: bytes) -> RouteEntry | None:
        try:
            return read_message(codec.unpack(data), RouteEntry)
        except ReachError as error:
            self.garbage += 1
            _log.warning("the routing table's entry of %s cannot be read: %s", capability, error)
            return None

    def _drop(self, capability: str) -> None:
        self._raw.pop(capability, None)
        if self._entries.pop(capability, None) is not None:
            self._tell(capability, None)

    def _tell(self, capability: str, entry: RouteEntry | None) -> None:
        for follower in self._followers:
            follower(capability, entry)
