"""What a caller gets in a failure's place, and what is never hidden from it (BREAK-6)."""

import asyncio
from typing import Any

import pytest

import reach
from reach.call.client import Bus
from reach.faults import Reason
from reach.wire.record import ReachRecord
from tests.runtime.fleet import Fleet, eventually


def agent_that(do: Any, *, idempotent: bool = False) -> reach.Agent:
    """An agent whose one capability does this."""
    agent = reach.Agent("shop")

    @agent.capability("shop.price", idempotent=idempotent)
    async def price() -> Any:
        return await do()

    return agent


async def refuse() -> None:
    raise reach.NotExecuted


async def fail() -> None:
    raise ValueError


async def hang() -> None:
    await asyncio.sleep(10)


async def wrong() -> None:
    raise reach.SchemaInvalid("there is no such article")


async def forbidden() -> None:
    raise reach.UpstreamRefusal("not yours", reason=Reason.FORBIDDEN)


async def last_record(fleet: Fleet, reach_id: str) -> ReachRecord:
    """Give the record of a call, which is written a moment after its end."""
    found: list[ReachRecord] = []
    await eventually(lambda: found.extend(one for one in fleet.records if one.reach_id == reach_id) or found)
    return found[0]


async def ask(bus: Bus, **options: Any) -> reach.Reply:
    return await bus.request("shop.price", **{"timeout_s": 0.3, "retry": False, **options})


@pytest.mark.parametrize("value", [{"price": 10}, None, 0, [], "later"], ids=repr)
async def test_a_value_takes_the_place_of_what_is_not_to_be_had(fleet: Fleet, value: Any) -> None:
    """BREAK-6: any value, None among them; the reply is a good one, and degraded, always."""
    await fleet.serve(agent_that(refuse))
    bus = await fleet.connect()
    reply = await ask(bus, fallback=value)
    assert (True, value, None, True, 1) == (
        reply.ok,
        reply.data,
        reply.error,
        reply.degraded,
        reply.degrade_level,
    )
    record = await last_record(fleet, reply.reach_id)
    assert ("ok", 1, "HANDLER_ERROR") == (record.outcome, record.degrade_level, record.attempts[0].reason)
    assert "give_up:attempts fallback:static" == record.attempts[0].decision


async def test_nobody_there_is_covered_too(fleet: Fleet) -> None:
    """BREAK-6: a capability that nobody serves."""
    bus = await fleet.connect()
    reply = await bus.request("shop.nobody", fallback=7)
    assert (7, True) == (reply.unwrap(), reply.degraded)


async def test_a_good_answer_stays_as_it_is(fleet: Fleet) -> None:
    """BREAK-6: a fallback that is not needed leaves no mark."""

    async def good() -> int:
        return 5

    await fleet.serve(agent_that(good))
    bus = await fleet.connect()
    reply = await ask(bus, fallback=7)
    assert (5, False, 0) == (reply.unwrap(), reply.degraded, reply.degrade_level)


@pytest.mark.parametrize(
    ("do", "reason"), [(wrong, Reason.SCHEMA), (forbidden, Reason.FORBIDDEN)], ids=["mistake", "permission"]
)
async def test_what_the_caller_has_to_know_is_told(fleet: Fleet, do: Any, reason: Reason) -> None:
    """BREAK-6: a mistake of its own, or a missing permission, is never covered up."""
    await fleet.serve(agent_that(do))
    bus = await fleet.connect()
    reply = await ask(bus, fallback=7)
    assert reply.error is not None
    assert (reason, False) == (reply.error.reason, reply.degraded)
    record = await last_record(fleet, reply.reach_id)
    assert record.attempts[-1].decision.endswith(" no_fallback:not_covered")


@pytest.mark.parametrize("do", [hang, fail], ids=["no answer", "failed"])
async def test_what_may_have_happened_is_told(fleet: Fleet, do: Any) -> None:
    """BREAK-6, RETRY-2: of what is not declared idempotent a fallback would hide that it may have been done."""
    await fleet.serve(agent_that(do))
    bus = await fleet.connect()
    reply = await ask(bus, fallback=7, idempotency_key="a key does not make it so")
    assert not reply.ok
    record = await last_record(fleet, reply.reach_id)
    assert " no_fallback:" in record.attempts[-1].decision


@pytest.mark.parametrize("do", [hang, fail], ids=["no answer", "failed"])
async def test_what_may_be_repeated_may_be_replaced(fleet: Fleet, do: Any) -> None:
    """BREAK-6: what is declared idempotent hides nothing by it."""
    await fleet.serve(agent_that(do, idempotent=True))
    bus = await fleet.connect()
    assert 7 == (await ask(bus, fallback=7)).unwrap()


async def test_a_fallback_comes_after_the_retry(fleet: Fleet) -> None:
    """BREAK-6: first everything is tried that may be tried."""
    tried: list[int] = []

    async def second_time_well() -> str:
        tried.append(1)
        if len(tried) == 1:
            raise reach.NotExecuted
        return "usual"

    await fleet.serve(agent_that(second_time_well))
    bus = await fleet.connect()
    reply = await bus.request("shop.price", fallback="unusual")
    assert ("usual", False, 2) == (reply.unwrap(), reply.degraded, reply.attempt)


async def test_an_option_for_all_calls_of_a_view(fleet: Fleet) -> None:
    """BREAK-6: `with_options(fallback=…)` holds for each of its calls."""
    await fleet.serve(agent_that(refuse))
    bus = await fleet.connect()
    careful = bus.with_options(fallback="none today", retry=False)
    assert ["none today"] * 2 == [(await careful.request("shop.price")).data for _ in range(2)]
