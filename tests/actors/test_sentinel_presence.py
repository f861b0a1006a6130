"""Who is gone, judged from the server's events: the decisions alone, time as an argument."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.sentinel.presence import (
    GIVE_UP_S,
    MAX_KNOWN,
    PAUSE_S,
    Event,
    Instance,
    Link,
    Presence,
    event_of,
    instance_of,
)

READER = Instance("reader-abcdefgh", 1_700_000_000_000)
FIRST = Event(READER, Link("s1", 7, "agent-key"))
SECOND = Event(READER, Link("s1", 8, "agent-key"))
IMPOSTOR = Event(READER, Link("s1", 9, "caller-key"))


def gone(presence: Presence, now: float) -> list[Instance]:
    return [departure.instance for departure in presence.due(now=now)]


def ends(presence: Presence, event: Event, now: float) -> None:
    presence.disconnected(event, now=now, at_ms=int(now * 1000))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("reach:agent:reader-abcdefgh:1700000000000", READER),
        ("reach:caller:reader-abcdefgh:1700000000000", None),
        ("reach:platform:x:1", None),
        ("other:agent:x:1", None),
        ("reach:agent:x", None),
        ("reach:agent:x:1:2", None),
        ("reach:agent:a.b:1", None),
        ("reach:agent:*:1", None),
        ("reach:agent::1", None),
        ("reach:agent:x:-1", None),
        ("reach:agent:x:", None),
        ("reach:agent:x:１", None),
        ("", None),
    ],
)
def test_only_names_of_agents_are_read(name: str, expected: Instance | None) -> None:
    """Names are chosen by clients: what is not exactly an agent's never reaches a subject."""
    assert expected == instance_of(name)


@given(st.text(max_size=40))
def test_any_name_is_read_or_refused_quietly(name: str) -> None:
    """Whatever a client calls itself, reading it never raises, and what is read is one token."""
    found = instance_of(f"reach:agent:{name}")
    assert found is None or "." not in found.name


BODY: dict[str, Any] = {
    "server": {"id": "s1"},
    "client": {"id": 7, "name": "reach:agent:reader-abcdefgh:1700000000000", "user": "agent-key"},
}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (BODY, FIRST),
        (BODY | {"reason": "Kicked"}, replace(FIRST, reason="Kicked")),
        (BODY | {"client": {**BODY["client"], "name": "nats-cli"}}, None),
        (BODY | {"client": {**BODY["client"], "name": None}}, None),
        (BODY | {"client": {**BODY["client"], "id": "7"}}, None),
        (BODY | {"client": None}, None),
        (BODY | {"server": "s1"}, None),
        ({}, None),
    ],
)
def test_events_are_read_by_what_they_must_hold(body: dict[str, Any], expected: Event | None) -> None:
    """An event about an agent has a name, a number and a server; anything else is not one."""
    assert expected == event_of(body)


def test_gone_after_the_pause_and_not_before() -> None:
    """LIFE-4: a connection that ended is judged half a second later, once."""
    presence = Presence()
    presence.connected(FIRST)
    ends(presence, FIRST, 10.0)
    assert (10.0 + PAUSE_S, [], [READER], []) == (
        presence.next_due(),
        gone(presence, 10.49),
        gone(presence, 10.5),
        gone(presence, 99.0),
    )


def test_coming_back_within_the_pause_is_no_departure() -> None:
    """LIFE-4: the same generation on a new connection, and the instance was never gone."""
    presence = Presence()
    presence.connected(FIRST)
    ends(presence, FIRST, 10.0)
    presence.connected(SECOND)
    assert ([], None, 0) == (gone(presence, 99.0), presence.next_due(), presence.away)


def test_coming_back_before_the_old_end_is_noticed() -> None:
    """The server may notice a dead socket late: its end does not count once a newer connection is known."""
    presence = Presence()
    for event in (FIRST, SECOND):
        presence.connected(event)
    ends(presence, FIRST, 10.0)
    assert [] == gone(presence, 99.0)
    ends(presence, SECOND, 100.0)
    assert [READER] == gone(presence, 101.0)


def test_another_generation_is_another_instance() -> None:
    """A newer start of the same name does not excuse the end of the older one."""
    presence = Presence()
    presence.connected(FIRST)
    ends(presence, FIRST, 10.0)
    newer = replace(READER, generation=READER.generation + 1)
    presence.connected(Event(newer, Link("s1", 8, "agent-key")))
    assert [READER] == gone(presence, 10.5)


def test_an_end_of_what_began_before_we_watched_is_believed() -> None:
    """After a restart of the sentinel, or a gap in its own link, unknown connections may end."""
    presence = Presence()
    ends(presence, FIRST, 10.0)
    assert [READER] == gone(presence, 10.5)
    presence.connected(FIRST)
    presence.connected(SECOND)
    presence.forget_links()
    ends(presence, SECOND, 20.0)
    assert [READER] == gone(presence, 20.5)


def test_nobody_can_make_another_look_gone() -> None:
    """A client with another login that takes an agent's connection name changes nothing, coming or leaving."""
    presence = Presence()
    presence.connected(FIRST)
    presence.connected(IMPOSTOR)
    ends(presence, IMPOSTOR, 10.0)
    assert [] == gone(presence, 99.0)


def test_nobody_can_cover_up_that_another_is_gone() -> None:
    """Nor does such a client, connecting within the pause, hide an end."""
    presence = Presence()
    presence.connected(FIRST)
    ends(presence, FIRST, 10.0)
    presence.connected(IMPOSTOR)
    assert [READER] == gone(presence, 10.5)


def test_the_first_end_counts() -> None:
    """A second end within the pause neither delays nor doubles the finding."""
    presence = Presence()
    ends(presence, FIRST, 10.0)
    ends(presence, SECOND, 10.4)
    assert ([READER], []) == (gone(presence, 10.5), gone(presence, 99.0))


def test_a_finding_that_cannot_be_told_is_kept_for_one_lease() -> None:
    """LIFE-1: without a link it is tried again, until the lease tells the same; coming back ends it too."""
    presence = Presence()
    ends(presence, FIRST, 10.0)
    (departure,) = presence.due(now=10.5)
    assert (True, [], [READER]) == (
        presence.postpone(departure, now=10.5),
        gone(presence, 10.55),
        gone(presence, 10.65),
    )
    assert not presence.postpone(departure, now=10.0 + GIVE_UP_S)
    presence.postpone(departure, now=11.0)
    presence.connected(SECOND)
    assert [] == gone(presence, 99.0)


def test_a_kick_is_told_as_such() -> None:
    """Being thrown out is not the same as dying: the cause says which."""
    presence = Presence()
    ends(presence, replace(FIRST, reason="Kicked"), 10.0)
    ends(presence, Event(replace(READER, name="other"), SECOND.link, "Client Closed"), 10.0)
    assert [True, False] == [departure.kicked for departure in presence.due(now=11.0)]


def test_memory_is_bounded() -> None:
    """However many connections come and never end, only so many are remembered, the newest of them."""
    presence = Presence()
    for number in range(MAX_KNOWN + 10):
        presence.connected(Event(Instance("i", number), Link("s1", number, "k")))
    assert MAX_KNOWN == len(presence._links)
    assert Instance("i", MAX_KNOWN + 9) in presence._links


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["begins", "ends"]), st.integers(0, 3), st.integers(0, 1), st.floats(0, 0.6)
        ),
        max_size=60,
    )
)
def test_gone_means_nobody_is_there(history: list[tuple[str, int, int, float]]) -> None:
    """Over any history, an instance told gone has had no connection known for the whole pause before."""
    presence = Presence()
    now = 0.0
    back: dict[Instance, float] = {}
    latest: dict[Instance, int] = {}
    for what, number, who, pause in history:
        now += pause
        instance = Instance("i", who)
        event = Event(instance, Link("s1", number, "k"))
        for departure in presence.due(now=now):
            assert departure.instance not in latest
            assert departure.due >= back.get(departure.instance, 0.0) + PAUSE_S
        if what == "begins":
            presence.connected(event)
            latest[instance], back[instance] = number, now
        else:
            ends(presence, event, now)
            if latest.get(instance) == number:
                del latest[instance]
