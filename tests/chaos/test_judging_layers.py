"""Nested layers do not multiply: real processes, counted at the farthest one (RETRY-7, case 30).

A client calls `a`, which calls `b`, which calls `c`; each is served by two processes, and each would retry once.
"""

import asyncio
from collections import Counter
from pathlib import Path

from tests.chaos.judging_rig import Layers, tell
from tests.runtime.fleet import Fleet

TOLD = {
    "the farthest refuses": {"c": "refuse"},
    "the farthest refuses once": {"c": "refuse first"},
    "the farthest hangs": {"c": "hang"},
    "the farthest hangs once": {"c": "hang first"},
    "the farthest fails": {"c": "error"},
    "the middle refuses": {"b": "refuse"},
    "the middle refuses once": {"b": "refuse first"},
    "the middle hangs": {"b": "hang"},
    "the middle hangs once": {"b": "hang first"},
    "the middle and the farthest refuse": {"b": "refuse", "c": "refuse"},
    "the middle refuses once, the farthest always": {"b": "refuse first", "c": "refuse"},
    "the first and the farthest refuse": {"a": "refuse", "c": "refuse"},
    "all refuse": {"a": "refuse", "b": "refuse", "c": "refuse"},
    "the middle dies": {"b": "die first"},
}
"""Each layer answers what it is asked, or the one above it sees that nobody has repeated anything below."""

UNTOLD = {
    "all hang": {"a": "hang", "b": "hang", "c": "hang"},
    "the first hangs, the farthest refuses": {"a": "hang", "c": "refuse"},
    "the first refuses once, the farthest from then on": {"a": "refuse first", "c": "refuse later"},
    "the middle refuses once, the farthest from then on": {"b": "refuse first", "c": "refuse later"},
    "the middle hangs, the farthest refuses once": {"b": "hang", "c": "refuse first"},
    "the middle hangs, the farthest refuses": {"b": "hang", "c": "refuse"},
    "the first dies, the farthest refuses once": {"a": "die first", "c": "refuse first"},
}
"""A layer that repeated what is below it ends without a word, or a repetition is repeated further down."""


async def counted(fleet: Fleet, folder: Path, plans: dict[str, dict[str, str]]) -> dict[str, Counter[str]]:
    """Make one call for each plan; gives what each layer saw of it."""
    layers = Layers(fleet, folder)
    bus = await layers.serve("a", "b", "c")
    found = {}
    for number, (words, plan) in enumerate(plans.items()):
        layers.behave(**plan)
        reply = await bus.request("layer.a", {"call": f"call-{number}"}, timeout_s=1.5)
        await asyncio.sleep(0.1)  # What was sent is there by then.
        seen = found[words] = layers.seen(f"call-{number}")
        how = "ok" if reply.error is None else f"{reply.error.reason}, executed={reply.error.executed}"
        tell(f"{words:50} a {seen['a']}, b {seen['b']}, c {seen['c']}: {how}")
    return found


def over(found: dict[str, Counter[str]]) -> dict[str, dict[str, int]]:
    """Pick the plans in which a layer saw a logical call more than twice."""
    return {words: dict(seen) for words, seen in found.items() if max(seen.values()) > 2}


async def test_the_farthest_of_three_layers_sees_at_most_two_calls(fleet: Fleet, tmp_path: Path) -> None:
    """RETRY-7, case 30: whatever fails, and wherever: three layers, one retry in all, not 8 calls but 2."""
    found = await counted(fleet, tmp_path, TOLD)
    assert {} == over(found)
    assert all(seen["a"] for seen in found.values())


async def test_also_when_a_layer_ends_without_a_word(fleet: Fleet, tmp_path: Path) -> None:
    """RETRY-7, case 30: nor are there more when a layer that has repeated a call hangs, or its process ends."""
    found = await counted(fleet, tmp_path, UNTOLD)
    assert {} == over(found)
    assert all(seen["a"] for seen in found.values())
