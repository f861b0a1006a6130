"""Never twice, at real agents on a real server: duplicates, waiters, other parameters, large results (IDEM)."""

import asyncio
import time
from typing import Any

import pytest

import reach
from reach.bus.idempotency import IdempotencyStore, Unavailable
from reach.faults import Executed, Reason
from reach.ids import new_id
from reach.policy.dedupe import explicit_key
from reach.runtime.instance import Instance
from reach.wire.idempotency import EntryState, IdempotencyEntry
from tests.runtime.fleet import Fleet, eventually


class Desk:
    """An agent that notes what it does, and fails or waits as its parameters say."""

    def __init__(self, *names: str, **options: Any) -> None:
        self.done: list[str] = []
        self.agents = [self._agent(name, options) for name in names or ("desk",)]

    @property
    def agent(self) -> reach.Agent:
        return self.agents[0]

    def _agent(self, name: str, options: dict[str, Any]) -> reach.Agent:
        agent = reach.Agent(name)

        @agent.capability("desk.do", **options)
        async def do(
            ctx: reach.Context, number: str = "", wait_s: float = 0.0, size: int = 0, fails: str = ""
        ) -> Any:
            self.done.append(ctx.instance)
            await asyncio.sleep(wait_s)
            if fails == "no":
                raise reach.NotExecuted
            if fails == "yes":
                raise reach.UpstreamRefusal("the books are closed", reason=Reason.REMOTE_4XX)
            return "x" * size if size else {"booked": number}

        return agent


async def entry_of(instance: Instance, capability: str, key: str) -> IdempotencyEntry | None:
    """Give what the store holds of a call."""
    store = IdempotencyStore(instance.connection)
    try:
        found = await store.read(explicit_key("default", key, capability))
    finally:
        store.close()
    return None if found is None else found.entry


async def test_a_key_is_done_once(fleet: Fleet) -> None:
    """IDEM-1, IDEM-2: of many calls with one key at two instances one is executed; all have its reply."""
    desk, key = Desk(), new_id()
    instance = await fleet.serve(desk.agent)
    await fleet.serve(desk.agent)
    bus = await fleet.connect()
    given = {"number": "R-1", "wait_s": 0.2}
    replies = await asyncio.gather(*(bus.request("desk.do", given, idempotency_key=key) for _ in range(20)))
    assert 1 == len(desk.done)
    assert [{"booked": "R-1"}] * 20 == [reply.unwrap() for reply in replies]
    assert [False] + [True] * 19 == sorted(reply.duplicate for reply in replies)
    assert all(reply.durable for reply in replies)
    entry = await entry_of(instance, "desk.do", key)
    assert entry is not None
    assert (EntryState.DONE, desk.done[0], key) == (entry.state, entry.instance, entry.idempotency_key)


async def test_another_payload_under_the_key_is_refused(fleet: Fleet) -> None:
    """IDEM-2: other parameters are refused, while the first call runs, here and elsewhere, and when it is done."""
    desk, key = Desk("one", "two"), new_id()
    one, two = [await fleet.serve(agent) for agent in desk.agents]
    bus = await fleet.connect()
    first = asyncio.create_task(
        bus.request("desk.do", {"number": "R-1", "wait_s": 0.5}, idempotency_key=key, target=one.agent_id)
    )
    await eventually(lambda: desk.done)
    for target in (one.agent_id, two.agent_id) * 2:
        reply = await bus.request("desk.do", {"number": "R-2"}, idempotency_key=key, target=target)
        assert reply.error is not None
        assert (Reason.KEY_REUSED, Executed.NO) == (reply.error.reason, reply.error.executed)
        if target == two.agent_id:
            await first
    assert 1 == len(desk.done)


async def test_whoever_waits_holds_no_place(fleet: Fleet) -> None:
    """IDEM-2: duplicates of a call that fills its instance wait without a place, here and elsewhere."""
    desk, key = Desk("one", "two", max_concurrency=1), new_id()
    one, two = [await fleet.serve(agent) for agent in desk.agents]
    bus = await fleet.connect()
    given = {"number": "R-1", "wait_s": 0.5}
    calls = [
        asyncio.create_task(bus.request("desk.do", given, idempotency_key=key, target=target.agent_id))
        for target in (one, *[one, two] * 5)
    ]
    await eventually(lambda: desk.done and one.inflight + two.inflight == len(calls))
    holder = next(each for each in (one, two) if each.name == desk.done[0])
    other = two if holder is one else one
    await eventually(lambda: (1, 0) == (holder.served[0].running, other.served[0].running))
    assert {"booked": "X"} == (await bus.request("desk.do", {"number": "X"}, target=other.agent_id)).unwrap()
    assert [{"booked": "R-1"}] * 11 == [(await call).unwrap() for call in calls]
    assert 2 == len(desk.done)


async def test_what_still_runs_says_where(fleet: Fleet) -> None:
    """IDEM-2: a duplicate whose time is over is told where the call runs, and when to ask again."""
    desk, key = Desk("one", "two"), new_id()
    one, two = [await fleet.serve(agent) for agent in desk.agents]
    bus = await fleet.connect()
    given = {"number": "R-1", "wait_s": 1.0}
    first = asyncio.create_task(bus.request("desk.do", given, idempotency_key=key, target=one.agent_id))
    await eventually(lambda: desk.done)
    for target in (one, two):
        reply = await bus.request(
            "desk.do", given, idempotency_key=key, target=target.agent_id, timeout_s=0.3, retry=False
        )
        assert reply.error is not None
        assert (Reason.IN_PROGRESS, Executed.MAYBE, True) == (
            reply.error.reason,
            reply.error.executed,
            reply.duplicate,
        )
        assert one.name in reply.error.message
        assert (reply.error.retry_after_ms or 0) >= 100
    assert {"booked": "R-1"} == (await first).unwrap()
    again = await bus.request("desk.do", given, idempotency_key=key, target=two.agent_id)
    assert ({"booked": "R-1"}, True) == (again.unwrap(), again.duplicate)


async def test_failures_that_were_executed_are_kept(fleet: Fleet) -> None:
    """IDEM-5: what was executed and failed is not done again; what was not executed is."""
    desk, yes, no = Desk(), new_id(), new_id()
    await fleet.serve(desk.agent)
    bus = await fleet.connect()
    told = [
        await bus.request("desk.do", {"fails": "yes"}, idempotency_key=yes, retry=False) for _ in range(2)
    ]
    assert 1 == len(desk.done)
    assert ["the books are closed"] * 2 == [reply.error.message for reply in told if reply.error is not None]
    assert [False, True] == [reply.duplicate for reply in told]
    told = [await bus.request("desk.do", {"fails": "no"}, idempotency_key=no, retry=False) for _ in range(2)]
    assert 3 == len(desk.done)
    assert [False, False] == [reply.duplicate for reply in told]


async def test_what_never_started_leaves_no_entry(fleet: Fleet) -> None:
    """IDEM-1: parameters that the handler does not take are not remembered under the key."""
    desk, key = Desk(), new_id()
    instance = await fleet.serve(desk.agent)
    bus = await fleet.connect()
    wrong = await bus.request("desk.do", {"wait_s": ["no number"]}, idempotency_key=key)
    assert wrong.error is not None
    assert (Reason.SCHEMA, Executed.NO) == (wrong.error.reason, wrong.error.executed)
    assert await entry_of(instance, "desk.do", key) is None
    right = await bus.request("desk.do", {"number": "R-1"}, idempotency_key=key)
    assert ({"booked": "R-1"}, False) == (right.unwrap(), right.duplicate)


async def test_a_large_result_is_given_again(fleet: Fleet) -> None:
    """IDEM-5: a result larger than a message is kept for 24 hours as a blob, and given to duplicates."""
    desk, key = Desk(), new_id()
    instance = await fleet.serve(desk.agent)
    bus = await fleet.connect()
    given = {"size": 3 * 1024 * 1024}
    told = [await bus.request("desk.do", given, idempotency_key=key) for _ in range(2)]
    assert [given["size"]] * 2 == [len(reply.unwrap()) for reply in told]
    assert [False, True] == [reply.duplicate for reply in told]
    assert 1 == len(desk.done)
    entry = await entry_of(instance, "desk.do", key)
    assert entry is not None
    assert entry.reply is not None
    assert entry.reply.blob is not None
    assert "reach_blobs_24h" == entry.reply.blob["bucket"]


async def test_large_parameters_are_the_same_parameters(fleet: Fleet) -> None:
    """IDEM-1: the digest is of the content, so parameters that travel as another blob are known again."""
    desk, key = Desk(), new_id()
    await fleet.serve(desk.agent)
    bus = await fleet.connect()
    given = {"number": "9" * 2 * 1024 * 1024}
    told = [await bus.request("desk.do", given, idempotency_key=key) for _ in range(2)]
    assert [False, True] == [reply.duplicate for reply in told]
    assert 1 == len(desk.done)


@pytest.mark.parametrize(("idempotent", "times"), [(True, 2), (False, 1)])
async def test_a_caller_that_leaves(fleet: Fleet, idempotent: bool, times: int) -> None:
    """IDEM-1, case 32: leaving stops the handler and not the memory: a write's outcome is unknown, never forgotten."""
    desk, key = Desk(idempotent=idempotent), new_id()
    instance = await fleet.serve(desk.agent)
    bus = await fleet.connect()
    first = asyncio.create_task(bus.request("desk.do", {"wait_s": 0.4}, idempotency_key=key))
    await eventually(lambda: desk.done)
    await asyncio.sleep(0.1)
    first.cancel()
    await eventually(lambda: not instance.inflight)
    again = await bus.request("desk.do", {"wait_s": 0.4}, idempotency_key=key)
    assert times == len(desk.done)
    assert idempotent == again.ok
    if again.error is not None:
        assert (Reason.OUTCOME_UNKNOWN, "CANCELLED") == (again.error.reason, again.error.cause)


async def test_a_waiter_that_leaves_disturbs_nobody(fleet: Fleet) -> None:
    """IDEM-2: of several that wait one may leave; the others have the reply."""
    desk, key = Desk("one", "two"), new_id()
    one, two = [await fleet.serve(agent) for agent in desk.agents]
    bus = await fleet.connect()
    calls = [
        asyncio.create_task(
            bus.request("desk.do", {"wait_s": 0.4}, idempotency_key=key, target=each.agent_id)
        )
        for each in (one, one, two, two, two)
    ]
    await eventually(lambda: desk.done and one.inflight + two.inflight == len(calls))
    # One that waits where the call runs, or hopes to, and one that waits elsewhere.
    for leaver in (calls[1], calls[4]) if desk.done[0] == one.name else (calls[0], calls[4]):
        leaver.cancel()
    ended = await asyncio.gather(*calls, return_exceptions=True)
    replies = [reply for reply in ended if isinstance(reply, reach.Reply)]
    assert [True] * 3 == [reply.ok for reply in replies]
    assert 1 == len(desk.done)


async def test_a_thread_that_outlives_its_caller_is_waited_for(fleet: Fleet) -> None:
    """CALL-4, IDEM-1: a thread goes on after its caller's deadline; its result is what a later duplicate gets."""
    done, key = [], new_id()

    def slow(name: str) -> reach.Agent:
        agent = reach.Agent(name)

        @agent.capability("slow.do")
        def do(number: str) -> str:
            done.append(number)
            time.sleep(0.8)
            return number

        return agent

    one, two = await fleet.serve(slow("one")), await fleet.serve(slow("two"))
    bus = await fleet.connect()
    late = await bus.request(
        "slow.do", {"number": "R-1"}, idempotency_key=key, timeout_s=0.3, retry=False, target=one.agent_id
    )
    assert late.error is not None
    assert Executed.MAYBE == late.error.executed
    for target in (two, one):
        again = await bus.request("slow.do", {"number": "R-1"}, idempotency_key=key, target=target.agent_id)
        assert ("R-1", True) == (again.unwrap(), again.duplicate)
    assert ["R-1"] == done


async def test_a_stream_takes_no_key(fleet: Fleet) -> None:
    """A stream with a key is refused before it begins, in words; collected into one answer it is remembered."""
    agent, key, done = reach.Agent("drops"), new_id(), []

    @agent.capability("drops.fall")
    async def fall(count: int) -> Any:
        done.append(count)
        for number in range(count):
            yield number

    await fleet.serve(agent)
    bus = await fleet.connect()
    with pytest.raises(reach.SchemaInvalid, match="a stream takes no idempotency key"):
        _ = [part async for part in bus.stream("drops.fall", {"count": 2}, idempotency_key=key)]
    assert [] == done
    told = [await bus.request("drops.fall", {"count": 2}, idempotency_key=key) for _ in range(2)]
    assert [([0, 1], False), ([0, 1], True)] == [(reply.unwrap(), reply.duplicate) for reply in told]
    assert [2] == done


async def test_tenants_and_capabilities_have_keys_of_their_own(fleet: Fleet) -> None:
    """IDEM-1, DOOR-3: the same key of another tenant, or for another capability, is another call."""
    desk, key = Desk(), new_id()

    @desk.agent.capability("desk.undo")
    async def undo(number: str = "") -> str:
        return "undone"

    await fleet.serve(desk.agent)
    bus = await fleet.connect()
    for tenant in ("north", "south", "north"):
        await bus.request("desk.do", {"number": tenant}, idempotency_key=key, tenant=tenant)
    assert 2 == len(desk.done)
    assert "undone" == (await bus.request("desk.undo", {"number": "north"}, idempotency_key=key)).unwrap()


async def test_an_event_is_done_once(fleet: Fleet) -> None:
    """IDEM-1: what nobody waits for is remembered as well."""
    desk, key = Desk(), new_id()
    instance = await fleet.serve(desk.agent)
    bus = await fleet.connect()
    for _ in range(3):
        await bus.publish("desk.do", {"number": "R-1"}, idempotency_key=key)
    reply = await bus.request("desk.do", {"number": "R-1"}, idempotency_key=key)
    assert ({"booked": "R-1"}, True) == (reply.unwrap(), reply.duplicate)
    await eventually(lambda: not instance.inflight)
    assert 1 == len(desk.done)


async def test_a_result_that_cannot_be_kept_is_kept_later(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IDEM-5: where the store does not take a result the reply says so, and it is written when it does."""
    desk, key = Desk(), new_id()
    instance = await fleet.serve(desk.agent)
    bus = await fleet.connect()
    store = instance._once.keeper.store
    update, away = store.update, True

    async def balky(name: str, entry: Any, *, revision: int) -> int:
        if away:
            raise Unavailable("it is away")
        return await update(name, entry, revision=revision)

    monkeypatch.setattr(store, "update", balky)
    told = [await bus.request("desk.do", {"number": "R-1"}, idempotency_key=key) for _ in range(2)]
    assert [(False, False), (False, True)] == [(reply.durable, reply.duplicate) for reply in told]
    away = False
    await eventually(lambda: not instance._once.keeper.unwritten)
    entry = await entry_of(instance, "desk.do", key)
    assert entry is not None
    assert EntryState.DONE is entry.state
    assert 1 == len(desk.done)


@pytest.mark.parametrize("value", [2**80, "\ud800", {"a": [2**70]}], ids=["number", "surrogate", "inside"])
async def test_a_result_that_cannot_cross_is_kept_as_such(fleet: Fleet, value: Any) -> None:
    """IDEM-5, CALL-8: it was done; the first caller and all later ones are told what was wrong with its result."""
    agent, key = reach.Agent("desk"), new_id()
    done: list[int] = []

    @agent.capability("desk.odd")
    async def odd() -> Any:
        done.append(1)
        return value

    instance = await fleet.serve(agent)
    bus = await fleet.connect()
    replies = [await bus.request("desk.odd", idempotency_key=key, timeout_s=5) for _ in range(2)]
    assert [1] == done
    assert [(Reason.BAD_RESULT, Executed.YES)] * 2 == [
        (reply.error and reply.error.reason, reply.error and reply.error.executed) for reply in replies
    ]
    assert all("cannot cross the wire" in ((reply.error and reply.error.message) or "") for reply in replies)
    assert [False, True] == [reply.duplicate for reply in replies]
    entry = await entry_of(instance, "desk.odd", key)
    assert entry is not None
    assert EntryState.DONE is entry.state


async def test_a_result_over_the_limit_is_refused_with_a_key_as_without(fleet: Fleet) -> None:
    """CALL-7, IDEM-5: nothing that is too large is kept, and both callers are told the sizes."""
    desk, key = Desk(max_payload_bytes=2000), new_id()
    await fleet.serve(desk.agent)
    bus = await fleet.connect()
    replies = [
        await bus.request("desk.do", {"size": 3000}, idempotency_key=key, timeout_s=5) for _ in range(2)
    ]
    assert 1 == len(desk.done)
    assert [Reason.BAD_RESULT] * 2 == [reply.error and reply.error.reason for reply in replies]
    assert all("at most 2000" in ((reply.error and reply.error.message) or "") for reply in replies)


async def test_a_slow_write_with_a_key_has_all_of_its_time(fleet: Fleet) -> None:
    """CALL-3, RETRY-1: the second attempt gets the result of the first, which nobody has stopped."""
    desk = Desk()
    for _ in range(2):
        await fleet.serve(desk.agent)
    bus = await fleet.connect()
    await bus.cards.instances("desk.do")
    given = {"number": "R-2", "wait_s": 1.7}
    reply = await bus.request("desk.do", given, idempotency_key=new_id(), timeout_s=2.0)
    assert ({"booked": "R-2"}, 1, True) == (reply.data, len(desk.done), reply.duplicate)


async def test_who_leaves_during_the_second_attempt_stops_the_first(fleet: Fleet) -> None:
    """CALL-5: a write that goes on while it is asked for again is stopped with its caller."""
    agent, key = reach.Agent("desk"), new_id()
    ended: list[str] = []

    @agent.capability("desk.long")
    async def long() -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return "done"

    for _ in range(2):
        await fleet.serve(agent)
    bus = await fleet.connect()
    call = asyncio.create_task(bus.request("desk.long", idempotency_key=key, timeout_s=20))
    await eventually(lambda: bus.pending == 1 and bus._core.mux._open_calls()[0].accepted is not None)
    bus._core.mux._open_calls()[0].settle(reach.Failure.of(Reason.DEADLINE))  # Its share of the time is over.
    await eventually(lambda: bus.metrics.attempts.samples() != [] and bus.pending == 1)
    await asyncio.sleep(0.3)
    assert [] == ended
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await eventually(lambda: ended == ["cancelled"])
