"""Which failed call is made again, where, and what is told when nobody knows (RETRY-1 to RETRY-7, ERR)."""

import asyncio
from time import monotonic
from typing import Any

import pytest

import reach
from reach.faults import Advice, Code, Executed, Reason
from reach.ids import new_id
from tests.runtime.fleet import Fleet, eventually


class Pair:
    """Two agents of one capability, of which chosen ones misbehave; the log of what was begun, and by whom."""

    def __init__(self, fleet: Fleet, *, idempotent: bool, bad: Any) -> None:
        self.fleet = fleet
        self.idempotent = idempotent
        self.bad = bad
        self.log: list[tuple[str, int]] = []
        self.is_bad: set[str] = set()

    def agent(self, name: str) -> reach.Agent:
        """Make one."""
        agent = reach.Agent(name)

        @agent.capability("pair.do", idempotent=self.idempotent)
        async def do(ctx: reach.Context) -> str:
            self.log.append((name, ctx.attempt))
            if name in self.is_bad:
                await (self.bad[name] if isinstance(self.bad, dict) else self.bad)()
            return name

        return agent

    async def serve(self, *names: str) -> reach.Bus:
        """Serve, and give a caller that knows both."""
        for name in names:
            await self.fleet.serve(self.agent(name))
        bus = await self.fleet.connect()
        await bus.cards.instances("pair.do")
        return bus


async def hang() -> None:
    await asyncio.sleep(30.0)


async def refuse() -> None:
    raise reach.NotExecuted("the ledger is locked")


async def overload() -> None:
    raise reach.RateLimited


async def fail() -> None:
    raise ValueError


async def test_an_idempotent_call_that_times_out_is_tried_on_another_instance(fleet: Fleet) -> None:
    """RETRY-1, RETRY-5, CALL-3: its first attempt gets at most 70 % of the time, so that the second is worth it."""
    pair = Pair(fleet, idempotent=True, bad=hang)
    pair.is_bad = {"left"}
    bus = await pair.serve("left", "right")
    while not (hung := [record for record in fleet.records if len(record.attempts) == 2]):
        began = monotonic()
        assert "right" == (await bus.request("pair.do", timeout_s=1.0)).unwrap()
        assert monotonic() - began < 1.5  # The deadline, and slack for a busy machine.
    first, second = hung[0].attempts
    assert ("left", "right") == (first.provider, second.provider)
    assert ("TIMEOUT", "DEADLINE", "maybe", "retry_elsewhere") == (
        first.code,
        first.reason,
        first.executed,
        first.decision,
    )
    assert 650 <= first.took_ms <= 900
    assert ("done", True) == (second.decision, hung[0].retried)


async def test_a_write_that_times_out_is_done_once_and_told_as_unknown(fleet: Fleet) -> None:
    """RETRY-2, case 31: not idempotent, outcome unknown: never again, nowhere; a person must look."""
    pair = Pair(fleet, idempotent=False, bad=hang)
    pair.is_bad = {"left", "right"}
    bus = await pair.serve("left", "right")
    reply = await bus.request("pair.do", timeout_s=0.5)
    assert reply.error is not None
    assert (Code.UNKNOWN, Reason.OUTCOME_UNKNOWN, Executed.MAYBE, False, Advice.ASK_HUMAN) == (
        reply.error.code,
        reply.error.reason,
        reply.error.executed,
        reply.error.retryable,
        reply.error.advice,
    )
    assert "DEADLINE" == reply.error.cause
    assert "Do not repeat it" in reply.error.message
    assert 1 == len(pair.log)


async def test_a_keyed_write_that_times_out_is_asked_again_and_done_once(fleet: Fleet) -> None:
    """RETRY-1, IDEM-1: a key makes a write repeatable, because whoever serves it knows that it was begun."""
    pair = Pair(fleet, idempotent=False, bad=hang)
    pair.is_bad = {"left"}
    bus = await pair.serve("left")
    reply = await bus.request("pair.do", timeout_s=0.5, idempotency_key=new_id())
    assert reply.error is not None
    assert (Reason.OUTCOME_UNKNOWN, "DEADLINE", 2) == (reply.error.reason, reply.error.cause, reply.attempt)
    assert [("left", 1)] == pair.log


async def test_what_was_not_executed_goes_elsewhere_the_write_too(fleet: Fleet) -> None:
    """RETRY-1: a handler that raises `NotExecuted` has done nothing: safe to send to another instance."""
    pair = Pair(fleet, idempotent=False, bad=refuse)
    bus = await pair.serve("left", "right")
    for _ in range(150):  # So that eight retries are within the budget of either lane (RETRY-6).
        await bus.request("pair.do")
    pair.is_bad = {"left"}
    replies = [await bus.request("pair.do") for _ in range(8)]
    assert {"right"} == {reply.unwrap() for reply in replies}
    assert {1, 2} == {reply.attempt for reply in replies}


async def test_what_was_not_executed_anywhere_is_told_as_not_executed(fleet: Fleet) -> None:
    """RETRY-4: two attempts, then the failure: executed=no, so that whoever asked may decide."""
    pair = Pair(fleet, idempotent=False, bad=refuse)
    pair.is_bad = {"left", "right"}
    bus = await pair.serve("left", "right")
    reply = await bus.request("pair.do")
    assert reply.error is not None
    assert (Reason.HANDLER_ERROR, Executed.NO) == (reply.error.reason, reply.error.executed)
    assert "locked" not in reply.error.message
    assert [1, 2] == [attempt for _, attempt in pair.log]
    assert {"left", "right"} == {name for name, _ in pair.log}


@pytest.mark.parametrize("idempotent", [True, False])
async def test_an_error_of_the_handler_is_not_tried_again(fleet: Fleet, idempotent: bool) -> None:
    """RETRY-1: executed=yes is never repeated."""
    pair = Pair(fleet, idempotent=idempotent, bad=fail)
    pair.is_bad = {"left", "right"}
    bus = await pair.serve("left", "right")
    reply = await bus.request("pair.do")
    assert reply.error is not None
    assert (Reason.HANDLER_ERROR, Executed.YES) == (reply.error.reason, reply.error.executed)
    assert 1 == len(pair.log)


async def test_retry_false_is_one_attempt(fleet: Fleet) -> None:
    """`retry=False`: one attempt, which then has all the time."""
    pair = Pair(fleet, idempotent=True, bad=refuse)
    pair.is_bad = {"left", "right"}
    bus = await pair.serve("left", "right")
    assert 1 == (await bus.request("pair.do", retry=False)).attempt
    assert 1 == len(pair.log)


async def test_a_failure_of_a_second_attempt_does_not_hide_the_first(fleet: Fleet) -> None:
    """`executed` is told over all attempts: a refusal by the second instance does not make the first one undone."""
    pair = Pair(fleet, idempotent=True, bad={"left": hang, "right": overload})
    pair.is_bad = {"left", "right"}
    bus = await pair.serve("left", "right")
    told: list[Any] = []
    while not any(name == "left" and attempt == 1 for name, attempt in pair.log):
        reply = await bus.request("pair.do", timeout_s=0.6)
        assert reply.error is not None
        told.append((reply.error.executed, reply.attempt))
    assert (Executed.MAYBE, 2) == told[-1]
    assert {Executed.NO, Executed.MAYBE} >= {executed for executed, _ in told}


async def test_a_nested_failure_is_not_tried_again_by_the_outer_layer(fleet: Fleet) -> None:
    """RETRY-7: one layer retries; the outer one sees executed=yes and leaves it at that."""
    inner, outer = reach.Agent("inner"), reach.Agent("outer")
    calls = {"inner": 0, "outer": 0}

    @inner.capability("layer.inner", idempotent=True)
    async def work() -> None:
        calls["inner"] += 1
        raise reach.NotExecuted

    @outer.capability("layer.outer", idempotent=True)
    async def ask(ctx: reach.Context) -> Any:
        calls["outer"] += 1
        return (await ctx.bus.request("layer.inner")).unwrap()

    await fleet.serve(inner)
    await fleet.serve(outer)
    bus = await fleet.connect()
    reply = await bus.request("layer.outer", timeout_s=5)
    assert {"inner": 2, "outer": 1} == calls
    assert reply.error is not None
    assert (Executed.YES, False, True) == (reply.error.executed, reply.error.retryable, reply.retried)


async def test_a_timeout_of_a_layer_that_has_retried_is_not_retried_above(fleet: Fleet) -> None:
    """RETRY-7: `Reply.retried` travels up, and ends retrying there."""
    inner, outer = reach.Agent("inner"), reach.Agent("outer")
    calls = {"inner": 0, "outer": 0}

    @inner.capability("layer.inner")
    async def work() -> str:
        calls["inner"] += 1
        if calls["inner"] == 1:
            raise reach.NotExecuted
        return "done"

    @outer.capability("layer.outer", idempotent=True)
    async def ask(ctx: reach.Context) -> Any:
        calls["outer"] += 1
        await ctx.bus.request("layer.inner")
        raise reach.NotExecuted

    await fleet.serve(inner)
    await fleet.serve(outer)
    bus = await fleet.connect()
    reply = await bus.request("layer.outer", timeout_s=5)
    assert {"inner": 2, "outer": 1} == calls
    assert reply.retried
    assert ["give_up:inner_retried"] == [one.decision for one in fleet.records[-1].attempts]


async def test_a_handler_may_answer_with_any_failure_of_the_table(fleet: Fleet) -> None:
    """ERR-1: what a handler raises as a ReachError is what the caller is told, with its limit and its wait."""
    agent = reach.Agent("teller")
    limit = {"name": "orders a day", "owner": "north", "used": 10, "allowed": 10, "resets_in_ms": 60_000}

    @agent.capability("teller.quota")
    async def quota() -> None:
        raise reach.RateLimited(
            "ten orders a day", reason=Reason.QUOTA_EXCEEDED, limit=limit, retry_after_ms=60_000
        )

    @agent.capability("teller.missing")
    async def missing() -> None:
        raise reach.UpstreamRefusal("no order 17", reason=Reason.NOT_FOUND)

    await fleet.serve(agent)
    bus = await fleet.connect()
    quota_reply, missing_reply = await bus.request("teller.quota"), await bus.request("teller.missing")
    assert quota_reply.error is not None
    assert (Code.RATE_LIMITED, Reason.QUOTA_EXCEEDED, Executed.NO, 60_000, limit) == (
        quota_reply.error.code,
        quota_reply.error.reason,
        quota_reply.error.executed,
        quota_reply.error.retry_after_ms,
        quota_reply.error.limit,
    )
    with pytest.raises(reach.UpstreamRefusal, match="no order 17") as refused:
        missing_reply.unwrap()
    assert (Reason.NOT_FOUND, Executed.YES) == (refused.value.reason, refused.value.executed)


async def test_a_failure_that_could_not_be_told_is_told_all_the_same(fleet: Fleet) -> None:
    """Promise 1: a failure whose words or limits do not fit a message reaches its caller, shortened, at once."""
    agent = reach.Agent("wordy")

    @agent.capability("wordy.long")
    async def long() -> None:
        raise reach.UpstreamFailure("x" * 3_000_000)

    @agent.capability("wordy.broken")
    async def broken() -> None:
        raise reach.UpstreamFailure("half \ud800", limit={"of": object()})

    @agent.capability("wordy.stream")
    async def stream() -> Any:
        yield 1
        raise reach.UpstreamFailure("half \ud800" + "x" * 3_000_000)

    @agent.capability("wordy.exit")
    async def leave() -> None:
        raise SystemExit(3)

    await fleet.serve(agent)
    bus = await fleet.connect()
    began = monotonic()
    for name in ("wordy.long", "wordy.broken", "wordy.exit"):
        reply = await bus.request(name, timeout_s=20)
        assert reply.error is not None
        assert (Reason.HANDLER_ERROR, Executed.YES) == (reply.error.reason, reply.error.executed)
        assert len(reply.error.message) < 3000
    with pytest.raises(reach.UpstreamFailure, match="half"):
        async for _ in bus.stream("wordy.stream"):
            pass
    assert monotonic() - began < 5.0


async def test_a_late_answer_harms_nobody(fleet: Fleet) -> None:
    """An answer that comes after its call was judged is counted and thrown away."""
    agent = reach.Agent("deaf")

    @agent.capability("deaf.work")
    async def work() -> str:
        try:
            await asyncio.sleep(0.4)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)
        return "late"

    instance = await fleet.serve(agent)
    bus = await fleet.connect()
    reply = await bus.request("deaf.work", timeout_s=0.2)
    assert not reply.ok
    await eventually(lambda: instance.inflight == 0)
    assert 0 == bus.pending
    assert "late" == (await bus.request("deaf.work", timeout_s=5)).unwrap()
