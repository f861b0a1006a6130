"""Digests of outcomes: they survive the wire, and their sketches are those that the policies merge."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from reach.policy.sketch import Sketch
from reach.wire import codec
from reach.wire.outcomes import LaneOutcomes, LatencySketch, Outcomes
from tests.wire.specimens import GOLDEN, specimens


@pytest.mark.parametrize("form", ["bin", "json"])
def test_the_golden_digest_is_read_as_it_was_written(form: str) -> None:
    """Every field of a digest survives both forms of the wire."""
    read = Outcomes.model_validate(codec.unpack((GOLDEN / f"outcomes.{form}").read_bytes()))
    assert specimens()["outcomes"].body == read.model_dump(mode="json")


def test_what_is_excused_does_not_count() -> None:
    """BREAK-2: 4xx, cancellations and refusals of ours are told and are no part of a lane's success."""
    lane = LaneOutcomes(provider="p", capability="a.b", ok=6, failed=2, excused=90)
    assert 8 == lane.counted


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.02, 1e6), max_size=50))
def test_a_sketch_of_the_policies_travels_in_a_digest(latencies: list[float]) -> None:
    """BREAK-4: what a caller's sketch holds is what the supervisor merges, in both forms of the wire."""
    sketch = Sketch()
    for ms in latencies:
        sketch.add(ms)
    told = LatencySketch.model_validate(sketch.to_map())
    lane = LaneOutcomes(provider="p", capability="a.b", ok=len(latencies), latency=told)
    body = lane.model_dump(mode="json")
    for pack in (codec.pack, codec.pack_json):
        heard = LaneOutcomes.model_validate(codec.unpack(pack(body))).latency
        assert told == heard
        merged = Sketch.from_map(told.model_dump())
        assert (len(latencies), sketch.quantile(0.99)) == (merged.count, merged.quantile(0.99))


@pytest.mark.parametrize(
    "fields", [{"ok": -1}, {"cost": -0.1}, {"reasons": {"DEADLINE": -1}}, {"latency": {"e": 0}}]
)
def test_a_digest_that_cannot_be_is_refused(fields: dict[str, object]) -> None:
    """Negative counts are no outcomes: they would heal what others saw fail."""
    with pytest.raises(ValidationError):
        LaneOutcomes.model_validate({"provider": "p", "capability": "a.b", **fields})
