"""Latency sketches: quantiles within 5 %, and merging that loses nothing."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reach.policy.sketch import BUCKETS, LEAST_MS, MOST_MS, RELATIVE_ERROR, Sketch

LATENCIES = st.lists(st.floats(LEAST_MS, MOST_MS), min_size=1, max_size=60)
MODEST = settings(max_examples=100, deadline=None)


def sketch_of(latencies: list[float]) -> Sketch:
    sketch = Sketch()
    for ms in latencies:
        sketch.add(ms)
    return sketch


@MODEST
@given(LATENCIES, st.floats(0, 1))
def test_a_quantile_is_within_five_percent(latencies: list[float], q: float) -> None:
    """Any quantile of any latencies in the range is the true one to within the relative error promised."""
    exact = sorted(latencies)[max(1, math.ceil(q * len(latencies))) - 1]
    found = sketch_of(latencies).quantile(q)
    assert found is not None
    assert exact == pytest.approx(found, rel=RELATIVE_ERROR / (1 - RELATIVE_ERROR) + 1e-9)
    assert abs(found - exact) <= exact * (RELATIVE_ERROR + 1e-9)


@MODEST
@given(st.lists(LATENCIES, max_size=5))
def test_merging_is_the_same_as_having_seen_it_all(parts: list[list[float]]) -> None:
    """The sketches of many callers, merged in any order, are the sketch of all calls."""
    whole = sketch_of([ms for part in parts for ms in part])
    for order in (parts, parts[::-1]):
        merged = Sketch()
        for part in order:
            merged.merge(sketch_of(part))
        assert (whole.count, whole.to_map()) == (merged.count, merged.to_map())


def test_merging_leaves_the_other_alone() -> None:
    """What is merged from stays as it was, also when the target was empty and grows on."""
    theirs, ours = sketch_of([1.0, 2.0]), Sketch()
    ours.merge(theirs)
    ours.add(1.0)
    assert (2, 3) == (theirs.count, ours.count)
    assert theirs.to_map() == sketch_of([1.0, 2.0]).to_map()


@MODEST
@given(st.lists(st.floats(0, 1e9), max_size=60))
def test_the_wire_form_comes_back_whole(latencies: list[float]) -> None:
    """A sketch crosses the wire, as JSON too, without losing a call."""
    sketch = sketch_of(latencies)
    back = Sketch.from_map(json.loads(json.dumps(sketch.to_map())))
    assert (sketch.count, sketch.to_map()) == (back.count, back.to_map())


def test_a_common_wire_form_is_small() -> None:
    """A minute of calls around 20 ms takes as many numbers as there are buckets in use."""
    m = sketch_of([10 + i % 20 for i in range(6_000)]).to_map()
    assert 11 == len(m["n"])
    assert 6_000 == sum(m["n"])


@pytest.mark.parametrize(
    "m",
    [
        {},
        {"e": 1.0, "i": 0, "n": [1]},
        {"e": 5.0, "i": "0", "n": [1]},
        {"e": 5.0, "i": True, "n": [1]},
        {"e": 5.0, "i": 0, "n": "1"},
        {"e": 5.0, "i": -1, "n": [1]},
        {"e": 5.0, "i": BUCKETS, "n": [1]},
        {"e": 5.0, "i": 0, "n": [-1]},
        {"e": 5.0, "i": 0, "n": [1.5]},
        {"e": 5.0, "i": 0, "n": [True]},
        {"e": 5.0, "i": 0, "n": [2**41]},
    ],
)
def test_a_map_that_is_no_sketch_is_refused(m: dict[str, Any]) -> None:
    """Whatever arrives that is no sketch, or one of another resolution, is refused with what would be right."""
    with pytest.raises(ValueError, match="sketch"):
        Sketch.from_map(m)


@pytest.mark.parametrize("ms", [-1.0, 0.0, 1e-9, LEAST_MS])
def test_what_is_too_short_is_the_least(ms: float) -> None:
    """Latencies below the range count as its lower end."""
    assert LEAST_MS == sketch_of([ms]).quantile(0.5)


@pytest.mark.parametrize("ms", [MOST_MS, 1e12, math.inf])
def test_what_is_too_long_is_the_most(ms: float) -> None:
    """Latencies above the range, endless ones too, count as its upper end."""
    assert MOST_MS == pytest.approx(sketch_of([ms]).quantile(0.5), rel=0.1)


def test_what_is_no_latency_is_refused() -> None:
    """NaN is refused, and changes nothing."""
    sketch = Sketch()
    with pytest.raises(ValueError, match="NaN"):
        sketch.add(math.nan)
    assert 0 == sketch.count


def test_an_empty_sketch_knows_nothing() -> None:
    """Without calls there is no quantile; cleared is as good as new."""
    sketch = sketch_of([1.0])
    sketch.clear()
    assert (0, None, Sketch().to_map()) == (sketch.count, sketch.quantile(0.99), sketch.to_map())


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan])
def test_a_share_is_within_one(q: float) -> None:
    """Asking for a quantile that there cannot be is a mistake."""
    with pytest.raises(ValueError, match="share"):
        Sketch().quantile(q)
