"""What a capability is told that could not work is refused at decoration, with what would be right."""

from collections.abc import AsyncIterator
from math import inf
from typing import Any

import pytest

import reach

BY = reach.Batch(by="order", into="order.many", many="orders")


def offered(**facts: Any) -> None:
    """Offer one order."""
    agent = reach.Agent("orders")

    @agent.capability("order.get", **facts)
    async def get(order: int, year: int = 2026) -> int:
        return order


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"cache": reach.Cache()}, "cache= of 'order.get' gives one answer to several calls"),
        ({"batch": BY}, "say reads=True if it does not"),
        (
            {"reads": True, "batch": BY.model_copy(update={"by": "id"})},
            "'id', which is no parameter of it: it has 'order', 'year'",
        ),
        (
            {"reads": True, "batch": BY.model_copy(update={"into": "order.get"})},
            "name the capability that takes many at once",
        ),
        ({"rate": reach.Rate()}, "rate= of 'order.get' bounds nothing: say calls=, concurrent=, or both"),
    ],
)
def test_what_could_not_work_is_refused(facts: dict[str, Any], told: str) -> None:
    """GUARD-3, GUARD-5, GUARD-6: a rule that would bound or save nothing is a mistake, and named."""
    with pytest.raises(ValueError, match=r"of 'order\.get'") as refused:
        offered(**facts)
    assert told in str(refused.value)


def test_a_batch_by_any_parameter_is_taken() -> None:
    """GUARD-6: a rule that fits is taken, also for a handler that takes whatever it is given."""
    offered(reads=True, batch=BY)
    agent = reach.Agent("orders")

    @agent.capability("order.get", reads=True, batch=BY)
    async def get(params: dict[str, Any]) -> Any:
        return params


def test_a_stream_is_not_shared() -> None:
    """GUARD-5: what is read in parts has no one answer."""
    agent = reach.Agent("orders")
    with pytest.raises(
        ValueError, match=r"'order\.all' is a stream, which is never shared: leave out reads=True"
    ):

        @agent.capability("order.all", reads=True)
        async def everything() -> AsyncIterator[int]:
            yield 1


@pytest.mark.parametrize("rule", [reach.Rate, reach.Cache, reach.Batch], ids=lambda rule: rule.__name__)
def test_times_end(rule: type[Any]) -> None:
    """GUARD-3: a card with a time that never ends would be read by nobody, and its rule would bound nothing."""
    given = {
        reach.Rate: {"calls": 1, "per_s": inf},
        reach.Cache: {"ttl_s": inf},
        reach.Batch: {**BY.model_dump(), "window_ms": inf},
    }
    with pytest.raises(ValueError, match="finite number"):
        rule(**given[rule])
