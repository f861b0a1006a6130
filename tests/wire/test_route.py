"""Routing table entries: which one counts, what they say by default, and that they survive the wire."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from reach.wire import codec
from reach.wire.route import Breaker, Canary, InstanceException, Lane, RouteEntry, TierShare
from tests.wire.specimens import GOLDEN, specimens


def entry(term: int, revision: int) -> RouteEntry:
    return RouteEntry(capability="invoice.extract", term=term, revision=revision, at=1)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [((7, 42), (7, 41), True), ((8, 1), (7, 41), True), ((7, 41), (7, 41), False), ((6, 99), (7, 41), False)],
)
def test_the_higher_term_and_revision_counts(
    ours: tuple[int, int], theirs: tuple[int, int], expected: bool
) -> None:
    """Design, section 5: a reader takes what is newer by (term, revision) and ignores a former leader's late write."""
    assert expected is entry(*ours).supersedes(entry(*theirs))
    assert entry(*ours).supersedes(None)


def test_a_lane_without_exceptions_is_uniform() -> None:
    """While all instances are healthy and of equal weight NATS may pick; one exception is enough to end that."""
    odd = InstanceException(instance="i-1", generation=1, state="suspect", factor=0.3)
    assert [True, False] == [
        Lane(provider="p").uniform,
        Lane(provider="p", exceptions=(odd,)).uniform,
    ]


def test_an_entry_that_says_little_means_the_usual() -> None:
    """What is left out is a healthy, closed, exact lane of tier 10, picked by NATS, without a canary."""
    lane = Lane(provider="p")
    assert ("closed", 10, 1.0, None, None) == (
        lane.breaker.state,
        lane.priority,
        lane.weight,
        lane.serves,
        lane.limit,
    )
    assert {1.0} == set(lane.terms.model_dump().values())
    assert ("pool", None, False) == (entry(1, 1).strategy.name, entry(1, 1).canary, entry(1, 1).last_resort)


@pytest.mark.parametrize("form", ["bin", "json"])
def test_the_golden_entry_is_read_as_it_was_written(form: str) -> None:
    """Every field of an entry survives both forms of the wire."""
    read = RouteEntry.model_validate(codec.unpack((GOLDEN / f"route.{form}").read_bytes()))
    assert specimens()["route"].body == read.model_dump(mode="json")


def test_a_newer_writer_may_say_more() -> None:
    """Unknown fields are ignored, at every depth."""
    body = entry(1, 1).model_dump(mode="json") | {"weather": "fair", "lanes": [{"provider": "p", "mood": 7}]}
    assert (Lane(provider="p"),) == RouteEntry.model_validate(body).lanes


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (Canary, {"percent": 101.0}),
        (TierShare, {"priority": 10, "share": 1.5}),
        (Lane, {"provider": "p", "weight": -1.0}),
        (Breaker, {"state": "ajar"}),
        (InstanceException, {"instance": "i", "generation": 1, "state": "warmup", "factor": 2.0}),
    ],
)
def test_what_cannot_be_is_refused(model: type[Canary], fields: dict[str, object]) -> None:
    """Shares past the whole, negative weights and unknown states are no entries."""
    with pytest.raises(ValidationError):
        model.model_validate(fields)


LANES = st.lists(
    st.builds(
        Lane,
        provider=st.sampled_from(["p", "q"]),
        priority=st.integers(0, 99),
        weight=st.floats(0, 1e9),
        instances=st.integers(0, 10_000),
        limit=st.none() | st.integers(1, 4_096),
        breaker=st.builds(Breaker, state=st.sampled_from(["closed", "open", "half_open", "forced_open"])),
    ),
    max_size=4,
)


@settings(max_examples=50, deadline=None)
@given(LANES, st.integers(0, 2**63 - 1), st.floats(0, 100))
def test_entries_round_trip(lanes: list[Lane], revision: int, percent: float) -> None:
    """An entry is the same after msgpack and after JSON."""
    written = RouteEntry(
        capability="a.b",
        term=1,
        revision=revision,
        at=1,
        lanes=tuple(lanes),
        canary=Canary(version="2", percent=percent),
    )
    body = written.model_dump(mode="json")
    assert [written, written] == [
        RouteEntry.model_validate(codec.unpack(pack(body))) for pack in (codec.pack, codec.pack_json)
    ]
