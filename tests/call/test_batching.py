"""Point reads that go as one call, and come apart again (GUARD-6)."""

import asyncio
from typing import Any

import pytest

import reach
from reach.call.client import Bus
from reach.faults import Reason
from reach.wire.record import ReachRecord
from tests.runtime.fleet import Fleet, eventually

WINDOW_MS = 30.0


class Stock:
    """An agent that has single articles, and many at once."""

    def __init__(self, *, many: bool = True, answer: str = "list", **card: Any) -> None:
        self.agent = reach.Agent("stock")
        self.singles: list[tuple[str | int, str]] = []
        self.batches: list[tuple[list[str | int], str, str | None, str | None]] = []
        self.failing: Exception | None = None
        self.let = asyncio.Event()
        self.let.set()
        self.cancelled = 0
        rule = reach.Batch(by="sku", into="stock.many", many="skus", **{"window_ms": WINDOW_MS, **card})

        @self.agent.capability("stock.one", reads=True, batch=rule)
        async def one(sku: str | int, store: str = "north") -> dict[str, Any]:
            self.singles.append((sku, store))
            return {"sku": sku, "store": store}

        if not many:
            return

        @self.agent.capability("stock.many", reads=True)
        async def several(ctx: reach.Context, skus: list[str | int], store: str = "north") -> Any:
            self.batches.append((skus, store, ctx.tenant, ctx.source))
            ctx.cost(2)
            try:
                await self.let.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            if self.failing is not None:
                raise self.failing
            found = [{"sku": sku, "store": store} for sku in skus]
            match answer:
                case "list":
                    return found
                case "map":
                    return {str(sku): item for sku, item in zip(skus, found, strict=True) if sku != "none"}
                case "short":
                    return found[1:]
                case _:
                    return answer


async def caller(fleet: Fleet) -> Bus:
    """A caller that knows the stock."""
    bus = await fleet.connect()
    await bus.cards.instances("stock.one")
    return bus


async def serve(fleet: Fleet, **given: Any) -> Stock:
    """Serve the stock."""
    stock = Stock(**given)
    await fleet.serve(stock.agent)
    return stock


def begin(
    bus: Bus, *skus: str | int, store: str = "north", **options: Any
) -> list[asyncio.Task[reach.Reply]]:
    """Ask for articles, all at once."""
    return [
        asyncio.create_task(bus.request("stock.one", {"sku": sku, "store": store}, **options)) for sku in skus
    ]


async def record_of(fleet: Fleet, reach_id: str | None) -> ReachRecord:
    """Give the one record of a call."""
    await eventually(lambda: any(one.reach_id == reach_id for one in fleet.records))
    (found,) = (one for one in fleet.records if one.reach_id == reach_id)
    return found


@pytest.mark.parametrize("answer", ["list", "map"])
async def test_point_reads_go_as_one(fleet: Fleet, answer: str) -> None:
    """GUARD-6: ten articles are one call of the batch endpoint; each caller gets its own."""
    stock = await serve(fleet, answer=answer)
    bus = await caller(fleet)
    skus = [*range(5), *"abcde"]
    replies = await asyncio.gather(*begin(bus, *skus))
    assert [{"sku": sku, "store": "north"} for sku in skus] == [reply.unwrap() for reply in replies]
    assert ([skus], []) == ([asked for asked, *_ in stock.batches], stock.singles)
    assert 10 == len({reply.reach_id for reply in replies})
    assert {"stock"} == {reply.provider for reply in replies}
    assert 10 == bus.metrics.batched.value("stock.one")


async def test_records_name_the_batch(fleet: Fleet) -> None:
    """SEE-3: each read's record links to the call of the batch, which counts its reads."""
    await serve(fleet)
    bus = await caller(fleet)
    replies = await asyncio.gather(*begin(bus, 1, 2, 3))
    records = [await record_of(fleet, reply.reach_id) for reply in replies]
    (batch_id,) = {record.batched_with for record in records}
    batch = await record_of(fleet, batch_id)
    assert ("stock.many", 3, 1) == (batch.capability, batch.waiters, len(batch.attempts))
    assert [("stock.one", "ok", None, "stock")] * 3 == [
        (record.capability, record.outcome, record.coalesced_with, record.provider) for record in records
    ]


async def test_only_what_differs_in_one_parameter_goes_together(fleet: Fleet) -> None:
    """GUARD-6: another value of another parameter is another batch."""
    stock = await serve(fleet)
    bus = await caller(fleet)
    await asyncio.gather(*begin(bus, 1, 2), *begin(bus, 1, 2, store="south"))
    assert [([1, 2], "north"), ([1, 2], "south")] == [batch[:2] for batch in stock.batches]


async def test_a_batch_is_one_tenants_and_one_principals(fleet: Fleet) -> None:
    """GUARD-6, DOOR-3: nobody's reads travel with another's."""
    stock = await serve(fleet)
    bus = await caller(fleet)
    calls = begin(bus, 1, 2, tenant="acme") + begin(bus, 1, 2, tenant="zenith")
    with reach.context(agent_id="planner"):
        calls += begin(bus, 1, 2)
    await asyncio.gather(*calls)
    assert [("acme", bus.connection.who), ("zenith", bus.connection.who), (None, "planner")] == [
        batch[2:] for batch in stock.batches
    ]


async def test_equal_reads_are_one_place_in_the_batch(fleet: Fleet) -> None:
    """GUARD-5, GUARD-6: they share first, and go together then; each has a copy of its own."""
    stock = await serve(fleet)
    bus = await caller(fleet)
    replies = await asyncio.gather(*begin(bus, 1, 1, 2, 2))
    assert [[1, 2]] == [asked for asked, *_ in stock.batches]
    replies[0].data["sku"] = 9
    assert [1, 2, 2] == [reply.data["sku"] for reply in replies[1:]]


async def test_a_full_batch_goes_at_once(fleet: Fleet) -> None:
    """GUARD-6: `max` values are not waited for any longer."""
    stock = await serve(fleet, max=3)
    bus = await caller(fleet)
    await asyncio.gather(*begin(bus, *range(7)))
    assert [[0, 1, 2], [3, 4, 5]] == [asked for asked, *_ in stock.batches]
    assert [(6, "north")] == stock.singles


async def test_one_alone_is_made_alone(fleet: Fleet) -> None:
    """GUARD-6: a window with one read in it needs no batch."""
    stock = await serve(fleet)
    bus = await caller(fleet)
    (reply,) = await asyncio.gather(*begin(bus, 1))
    assert ({"sku": 1, "store": "north"}, [], 1) == (reply.data, stock.batches, len(stock.singles))


async def test_who_has_no_time_for_a_window_does_not_wait_for_it(fleet: Fleet) -> None:
    """GUARD-6, CALL-2: the most of a short time is for the answer."""
    stock = await serve(fleet, window_ms=1000)
    bus = await caller(fleet)
    replies = await asyncio.gather(*begin(bus, 1, 2, timeout_s=3))
    assert [True, True] == [reply.ok for reply in replies]
    assert (2, []) == (len(stock.singles), stock.batches)


async def test_a_missing_value_fails_its_caller_alone(fleet: Fleet) -> None:
    """GUARD-6: what the batch says nothing of is a clear failure of that read only."""
    await serve(fleet, answer="map")
    bus = await caller(fleet)
    good, missing = await asyncio.gather(*begin(bus, "a", "none"))
    assert good.ok
    assert missing.error is not None
    assert Reason.BAD_RESULT is missing.error.reason
    assert "stock.many said nothing of sku 'none'" in missing.error.message


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("short", "was asked for 2 values and gave 1"),
        ("nonsense", "a list or a map of results, not with str"),
    ],
)
async def test_an_answer_that_cannot_be_handed_out_is_told_to_all(
    fleet: Fleet, answer: str, words: str
) -> None:
    """GUARD-6: nobody gets what may be somebody else's."""
    await serve(fleet, answer=answer)
    bus = await caller(fleet)
    replies = await asyncio.gather(*begin(bus, 1, 2))
    for reply in replies:
        assert reply.error is not None
        assert Reason.BAD_RESULT is reply.error.reason
        assert words in reply.error.message


async def test_a_failing_batch_is_told_to_all(fleet: Fleet) -> None:
    """GUARD-6: after the retries of the batch's own call; nobody is tried again one by one."""
    stock = await serve(fleet)
    stock.failing = reach.NotExecuted("closed")
    bus = await caller(fleet)
    replies = await asyncio.gather(*begin(bus, 1, 2, 3))
    assert [Reason.HANDLER_ERROR] * 3 == [reply.error.reason for reply in replies if reply.error is not None]
    assert (2, []) == (len(stock.batches), stock.singles)
    assert {2} == {reply.attempt for reply in replies}


async def test_without_the_batch_endpoint_each_is_made_alone(fleet: Fleet) -> None:
    """GUARD-6: nobody serves it; that is remembered for a while, so that nobody waits for a window."""
    stock = await serve(fleet, many=False)
    bus = await caller(fleet)
    replies = await asyncio.gather(*begin(bus, 1, 2))
    assert [1, 2] == [reply.data["sku"] for reply in replies]
    assert ["stock.many"] == list(bus._core.outbound.thrift.sharing.batches._absent)
    assert 2 == len(stock.singles)


async def test_an_endpoint_that_does_not_fit_is_no_fault_of_the_callers(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """GUARD-6: a rule that names another parameter than `into` takes: each is made alone, and the log says why."""
    agent = reach.Agent("stock")
    rule = reach.Batch(by="sku", into="stock.many", many="articles", window_ms=WINDOW_MS)

    @agent.capability("stock.one", reads=True, batch=rule)
    async def one(sku: int) -> int:
        return sku

    @agent.capability("stock.many", reads=True)
    async def several(skus: list[int]) -> list[int]:
        return skus

    await fleet.serve(agent)
    bus = await caller(fleet)
    replies = await asyncio.gather(*(bus.request("stock.one", {"sku": sku}) for sku in (1, 2)))
    assert [1, 2] == [reply.unwrap() for reply in replies]
    assert "reads of stock.one cannot go as stock.many" in caplog.text


async def test_one_that_leaves_leaves_the_batch_to_the_others(fleet: Fleet) -> None:
    """GUARD-6: before it is sent, it is left out; afterwards the others get theirs."""
    stock = await serve(fleet)
    stock.let.clear()
    bus = await caller(fleet)
    calls = begin(bus, 1, 2, 3, 4)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    calls[0].cancel()
    await eventually(lambda: stock.batches)
    calls[1].cancel()
    stock.let.set()
    replies = await asyncio.gather(*calls, return_exceptions=True)
    assert [[2, 3, 4]] == [asked for asked, *_ in stock.batches]
    assert [3, 4] == [reply.data["sku"] for reply in replies[2:] if isinstance(reply, reach.Reply)]
    assert 0 == stock.cancelled


async def test_with_the_last_one_the_batch_is_cancelled(fleet: Fleet) -> None:
    """GUARD-6, CALL-5: nobody waits, nobody works."""
    stock = await serve(fleet)
    stock.let.clear()
    bus = await caller(fleet)
    calls = begin(bus, 1, 2)
    await eventually(lambda: stock.batches)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await eventually(lambda: stock.cancelled == 1)


async def test_a_batch_has_the_time_of_its_most_patient_read(fleet: Fleet) -> None:
    """GUARD-6: an impatient one fails by its own deadline, alone."""
    stock = await serve(fleet)
    stock.let.clear()
    bus = await caller(fleet)
    calls = begin(bus, 1, timeout_s=0.3) + begin(bus, 2, timeout_s=5)
    reply = await calls[0]
    assert reply.error is not None
    assert Reason.DEADLINE is reply.error.reason
    stock.let.set()
    assert {"sku": 2, "store": "north"} == (await calls[1]).unwrap()
    assert 1 == len(stock.batches)


async def test_other_values_are_no_points(fleet: Fleet) -> None:
    """GUARD-6: only texts and numbers can be told apart in a batch; structure is checked first."""
    stock = await serve(fleet)
    bus = await caller(fleet)
    reply = await bus.request("stock.one", {"store": "north"})
    assert reply.error is not None
    assert (Reason.SCHEMA, []) == (reply.error.reason, stock.batches)


async def test_parts_are_kept_like_single_answers(fleet: Fleet) -> None:
    """GUARD-5, GUARD-6: what a batch brought is given again to who asks for one."""
    agent = reach.Agent("stock")
    asked: list[int] = []
    rule = reach.Batch(by="sku", into="stock.many", many="skus", window_ms=WINDOW_MS)

    @agent.capability("stock.one", reads=True, batch=rule, cache=reach.Cache(ttl_s=60))
    async def one(sku: int) -> int:
        asked.append(1)
        return sku * 10

    @agent.capability("stock.many", reads=True)
    async def several(skus: list[int]) -> list[int]:
        asked.append(len(skus))
        return [sku * 10 for sku in skus]

    await fleet.serve(agent)
    bus = await caller(fleet)
    first = await asyncio.gather(*(bus.request("stock.one", {"sku": sku}) for sku in (1, 2, 3)))
    second = await asyncio.gather(*(bus.request("stock.one", {"sku": sku}) for sku in (3, 2, 1)))
    assert ([10, 20, 30], [30, 20, 10]) == ([one.data for one in first], [one.data for one in second])
    assert [3] == asked
    assert {True} == {reply.cached for reply in second}
    before, record = [await record_of(fleet, reply.reach_id) for reply in (first[2], second[0])]
    assert (True, None, before.batched_with) == (record.cached, record.coalesced_with, record.batched_with)


async def test_what_a_batch_cost_is_told_once(fleet: Fleet) -> None:
    """GUARD-4, GUARD-6: the costs of all replies of a batch together are what it cost, and so is what a budget paid."""
    stock = await serve(fleet)
    bus = await caller(fleet)
    async with reach.round(budget=reach.Budget(cost=10)) as this:
        replies = await asyncio.gather(*begin(bus, 1, 2, 3))
        assert 8.0 == this.left.cost
    assert 1 == len(stock.batches)
    assert [2.0, None, None] == [reply.cost for reply in replies]
