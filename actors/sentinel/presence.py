"""Which instances are gone, judged from the server's connect and disconnect events.

An agent's connection that ends is judged after a pause: one that comes back as the same generation within it was
a mere hiccup. A connection is known by its name (`reach:agent:<instance>:<generation>`), which its client chose,
so an end only counts for the latest connection seen under that name, and only for the login that was seen first:
nobody else can make an instance look gone. Events of connections that began before we watched are believed.
Time is an argument throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from reach.errors import NameRefused
from reach.wire import names

PAUSE_S: Final = 0.5
"""How long a connection may be away before its instance is gone (design, section 5)."""

RETRY_S: Final = 0.1
GIVE_UP_S: Final = 30.0
"""A finding that cannot be told is kept for one lease (behaviour LIFE-1); by then everybody knows otherwise."""

MAX_KNOWN: Final = 100_000
"""Connections remembered; older ones are forgotten, and then believed like those from before we watched."""

KICKED: Final = "Kicked"
"""The server's word for a connection that an administrator ended."""

_NAME_PARTS: Final = 4


@dataclass(frozen=True, slots=True)
class Instance:
    """One start of one agent; `generation` is its start in epoch milliseconds."""

    name: str
    generation: int


@dataclass(frozen=True, slots=True)
class Link:
    """One connection: server, its number there, and the login it used."""

    server: str
    number: int
    login: str


@dataclass(frozen=True, slots=True)
class Event:
    """A connection of an agent began or ended; `reason` is the server's word for why it ended."""

    instance: Instance
    link: Link
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Departure:
    """An instance that is gone. `at_ms` is when its connection ended, in epoch milliseconds."""

    instance: Instance
    link: Link
    reason: str
    at_ms: int
    ended: float
    due: float

    @property
    def kicked(self) -> bool:
        """Whether it was thrown out rather than having left or died."""
        return self.reason == KICKED


def instance_of(connection_name: str) -> Instance | None:
    """Read the name of an agent's connection; None for anybody else's."""
    parts = connection_name.split(":")
    if len(parts) != _NAME_PARTS or parts[:2] != ["reach", "agent"]:
        return None
    name, generation = parts[2:]
    if not (generation.isascii() and generation.isdigit()):
        return None
    try:
        return Instance(names.token(name, "instance"), int(generation))
    except NameRefused:
        return None


def event_of(body: Mapping[str, Any]) -> Event | None:
    """Read a `$SYS.ACCOUNT.*.CONNECT` or `.DISCONNECT` event; None when it is not about an agent."""
    client, server = body.get("client"), body.get("server")
    if not isinstance(client, Mapping) or not isinstance(server, Mapping):
        return None
    name, number = client.get("name"), client.get("id")
    instance = instance_of(name) if isinstance(name, str) else None
    if instance is None or not isinstance(number, int):
        return None
    link = Link(str(server.get("id", "")), number, str(client.get("user", "")))
    return Event(instance, link, str(body.get("reason", "")))


class Presence:
    """Follows the connections of agents, and says which instances are gone."""

    def __init__(self, *, pause_s: float = PAUSE_S) -> None:
        self._pause_s = pause_s
        self._links: dict[Instance, Link] = {}
        self._away: dict[Instance, Departure] = {}

    @property
    def away(self) -> int:
        """How many are to be judged."""
        return len(self._away)

    def connected(self, event: Event) -> None:
        """Take note of a connection that began."""
        known = self._links.get(event.instance) or self._away_link(event.instance)
        if known is not None and known.login != event.link.login:
            return
        self._away.pop(event.instance, None)
        self._links.pop(event.instance, None)  # So that the newest is last.
        self._links[event.instance] = event.link
        if len(self._links) > MAX_KNOWN:
            del self._links[next(iter(self._links))]

    def disconnected(self, event: Event, *, now: float, at_ms: int) -> None:
        """Take note of a connection that ended; it counts unless a newer one is known."""
        known = self._links.get(event.instance)
        if known is not None and known != event.link:
            return
        self._links.pop(event.instance, None)
        if event.instance in self._away:
            return
        self._away[event.instance] = Departure(
            event.instance, event.link, event.reason, at_ms, ended=now, due=now + self._pause_s
        )

    def forget_links(self) -> None:
        """Our own view was interrupted: what began meanwhile is not known, so ends are believed again."""
        self._links.clear()

    def due(self, *, now: float) -> list[Departure]:
        """Take out those whose pause is over: they are gone."""
        gone = [departure for departure in self._away.values() if departure.due <= now]
        for departure in gone:
            del self._away[departure.instance]
        return gone

    def postpone(self, departure: Departure, *, now: float) -> bool:
        """Keep one that could not be told; False when it is too late for that."""
        if now - departure.ended >= GIVE_UP_S:
            return False
        self._away[departure.instance] = replace(departure, due=now + RETRY_S)
        return True

    def next_due(self) -> float | None:
        """When somebody is to be judged next; None when nobody is away."""
        return min((departure.due for departure in self._away.values()), default=None)

    def _away_link(self, instance: Instance) -> Link | None:
        departure = self._away.get(instance)
        return None if departure is None else departure.link
