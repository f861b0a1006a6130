"""Exactly one record a call, whatever ended it, and what stands in it (promise 4, SEE-3)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

import reach
from reach.bus.keys import Role
from reach.call.outbound import MAX_OPEN_CALLS
from reach.faults import Reason
from reach.runtime.instance import Instance
from reach.wire.record import ReachRecord
from tests.runtime.fleet import Fleet, eventually
from tests.wire.contract import document


def agent() -> reach.Agent:
    agent = reach.Agent("subject")
    tries: dict[str, int] = {}

    @agent.capability("subject.echo", idempotent=True)
    async def echo(params: dict[str, Any]) -> dict[str, Any]:
        return params

    @agent.capability("subject.strict")
    async def strict(a: int) -> int:
        return a

    @agent.capability("subject.hang", idempotent=True)
    async def hang() -> None:
        await asyncio.sleep(30)

    @agent.capability("subject.write")
    async def write() -> None:
        await asyncio.sleep(30)

    @agent.capability("subject.fail")
    async def fail() -> None:
        raise ValueError

    @agent.capability("subject.second")
    async def second(key: str) -> str:
        tries[key] = tries.get(key, 0) + 1
        if tries[key] == 1:
            raise reach.NotExecuted
        return "second"

    offer_odd_ends(agent)
    return agent


def offer_odd_ends(agent: reach.Agent) -> None:
    @agent.capability("subject.full", max_concurrency=1)
    async def full() -> None:
        await asyncio.sleep(0.4)

    @agent.capability("subject.result")
    async def result() -> int:
        return "text"  # type: ignore[return-value]

    @agent.capability("subject.parts")
    async def parts(count: int, fail: bool = False) -> AsyncIterator[int]:
        for number in range(count):
            yield number
        if fail:
            raise ValueError


Making = Callable[[reach.Bus], Awaitable[Any]]


async def cancelled(call: Any) -> None:
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.wait({task})


async def streamed(parts: AsyncIterator[Any], *, leave_after: int | None = None) -> None:
    seen = 0
    try:
        async for _ in parts:
            seen += 1
            if seen == leave_after:
                break
    except reach.ReachError:
        pass
    await parts.aclose()  # type: ignore[attr-defined]


async def overloaded(bus: reach.Bus) -> None:
    await asyncio.gather(*(bus.request("subject.full", retry=False) for _ in range(2)))


CASES: dict[str, tuple[Making, list[tuple[str, str | None, list[str]]]]] = {
    "ok": (lambda bus: bus.request("subject.echo", {"a": 1}), [("ok", None, ["done"])]),
    "refused by structure": (
        lambda bus: bus.request("subject.strict", {"b": 1}),
        [("failed", "SCHEMA", [])],
    ),
    "too large": (
        lambda bus: bus.request("subject.echo", {"a": b"x" * 40_000_000}),
        [("failed", "TOO_LARGE", [])],
    ),
    "nobody": (
        lambda bus: bus.request("subject.nobody"),
        [("failed", "NO_RESPONDERS", ["give_up:attempts"])],
    ),
    "required nobody": (
        lambda bus: bus.request("subject.echo", {}, require={"region": "moon"}),
        [("failed", "NO_RESPONDERS", [])],
    ),
    "handler error": (
        lambda bus: bus.request("subject.fail"),
        [("failed", "HANDLER_ERROR", ["give_up:executed"])],
    ),
    "bad result": (
        lambda bus: bus.request("subject.result"),
        [("failed", "BAD_RESULT", ["give_up:executed"])],
    ),
    "timeout, twice": (
        lambda bus: bus.request("subject.hang", timeout_s=0.3),
        [("failed", "DEADLINE", ["retry_elsewhere", "give_up:attempts"])],
    ),
    "timeout of a write": (
        lambda bus: bus.request("subject.write", timeout_s=0.3),
        [("failed", "OUTCOME_UNKNOWN", ["unknown:DEADLINE"])],
    ),
    "no time at all": (
        lambda bus: bus.request("subject.echo", {}, timeout_s=1e-9),
        [("failed", "DEADLINE", [])],
    ),
    "retried, then ok": (
        lambda bus: bus.request("subject.second", {"key": "r"}),
        [("ok", None, ["retry_elsewhere", "done"])],
    ),
    "not retried": (
        lambda bus: bus.request("subject.second", {"key": "n"}, retry=False),
        [("failed", "HANDLER_ERROR", ["give_up:attempts"])],
    ),
    "overloaded": (
        overloaded,
        [("failed", "OVERLOADED", ["give_up:attempts"]), ("ok", None, ["done"])],
    ),
    "cancelled": (
        lambda bus: cancelled(bus.request("subject.write")),
        [("cancelled", "CANCELLED", ["cancelled"])],
    ),
    "stream": (
        lambda bus: streamed(bus.stream("subject.parts", {"count": 3})),
        [("ok", None, ["done"])],
    ),
    "stream that fails": (
        lambda bus: streamed(bus.stream("subject.parts", {"count": 3, "fail": True})),
        [("failed", "HANDLER_ERROR", ["give_up:executed"])],
    ),
    "stream that is left": (
        lambda bus: streamed(bus.stream("subject.parts", {"count": 3}), leave_after=1),
        [("cancelled", "CANCELLED", ["cancelled"])],
    ),
    "stream that is cancelled": (
        lambda bus: cancelled(streamed(bus.stream("subject.write"))),
        [("cancelled", "CANCELLED", ["cancelled"])],
    ),
    "stream that is refused": (
        lambda bus: streamed(bus.stream("subject.parts", {"cuont": 1})),
        [("failed", "SCHEMA", [])],
    ),
    "broadcast": (
        lambda bus: streamed(bus.broadcast("subject.echo")),
        [("ok", None, ["done"])],
    ),
    "broadcast to nobody": (
        lambda bus: streamed(bus.broadcast("subject.nobody")),
        [("failed", "NO_RESPONDERS", ["give_up:attempts"])],
    ),
    "event": (
        lambda bus: bus.publish("subject.echo"),
        [("ok", None, ["done"])],
    ),
    "event that nobody hears": (
        lambda bus: bus.publish("subject.nobody"),
        [("failed", "NO_RESPONDERS", ["unheard"])],
    ),
}


@pytest.fixture
async def instance(fleet: Fleet) -> Instance:
    """An agent whose calls end in every way."""
    return await fleet.serve(agent(), drain_s=0.2)


@pytest.mark.parametrize("name", CASES)
async def test_every_kind_of_end_leaves_exactly_one_record(
    fleet: Fleet, instance: Instance, name: str
) -> None:
    """One record a call, with outcome, reason, and why there was or was not another attempt."""
    bus = await fleet.connect()
    await bus.cards.card_for("subject.echo")
    make, expected = CASES[name]
    await make(bus)
    await eventually(lambda: len(fleet.records) >= len(expected), within_s=3.0)
    await eventually(lambda: bus.pending == 0, within_s=3.0)
    found = [
        (record.outcome, record.reason, [attempt.decision for attempt in record.attempts])
        for record in fleet.records
    ]
    assert sorted(expected, key=str) == sorted(found, key=str)
    assert len(expected) == len({record.reach_id for record in fleet.records})
    for record in fleet.records:
        assert_is_whole(record)


def assert_is_whole(record: ReachRecord) -> None:
    """Check what stands in every record."""
    resource = DRAFT202012.create_resource(document())
    registry: Registry[Any] = Registry().with_resource("urn:asyncapi", resource)
    schema = {"$ref": "urn:asyncapi#/components/schemas/ReachRecord"}
    assert [] == [
        error.message
        for error in Draft202012Validator(schema, registry=registry).iter_errors(record.to_map())
    ]
    assert record.trace_id
    assert record.node
    assert record.caller
    assert 0 <= record.phases["admit_ms"] <= record.latency_ms + 0.001
    assert all(attempt.took_ms >= 0 for attempt in record.attempts)
    assert sum(attempt.took_ms for attempt in record.attempts) <= record.latency_ms + 0.001
    if record.attempts and record.outcome == "ok" and record.kind != "publish":
        assert record.attempts[-1].instance == record.instance
    assert ("ok" == record.outcome) == (record.code is None)


async def test_the_record_carries_who_asked_and_for_what(fleet: Fleet, instance: Instance) -> None:
    """Agent, session, task and tenant of the caller stand in the record; payloads never do."""
    bus = await fleet.connect()
    with reach.context(agent_id="checker", session_id="s-1", task_id="t-1", tenant="north"):
        reply = await bus.request("subject.echo", {"secret": "hunter2"})
    record = fleet.records[-1]
    assert ("checker", "s-1", "t-1", "north") == (
        record.agent_id,
        record.session_id,
        record.task_id,
        record.tenant,
    )
    assert (reply.reach_id, "subject", instance.name) == (record.reach_id, record.provider, record.instance)
    assert "hunter2" not in str(record.to_map())


async def test_a_cancelled_calls_record_names_who_had_it(fleet: Fleet, instance: Instance) -> None:
    """The instance that had accepted a call is known, and stands in its record."""
    bus = await fleet.connect()
    await cancelled(bus.request("subject.write"))
    await cancelled(streamed(bus.stream("subject.write")))
    assert [instance.name] * 2 == [record.instance for record in fleet.records]


async def test_a_failed_attempt_names_where_it_went(fleet: Fleet, instance: Instance) -> None:
    """Each attempt has its subject, instance, code, reason, executed and times."""
    bus = await fleet.connect()
    await bus.request("subject.hang", timeout_s=1.0)
    first, second = fleet.records[-1].attempts
    assert (1, 2) == (first.n, second.n)
    assert "cap.subject.hang" == first.subject
    assert {instance.name} == {first.instance, second.instance}
    assert {("TIMEOUT", "DEADLINE", "maybe")} == {
        (one.code, one.reason, one.executed) for one in (first, second)
    }
    assert first.started_ms < first.took_ms < second.started_ms


async def test_a_denied_call_leaves_one_record(fleet: Fleet, instance: Instance) -> None:
    """AUTH_DENIED: the broker's refusal, recorded like any other."""
    bus = await fleet.connect(Role.FENCER)
    await bus.request("subject.echo")
    assert [("failed", "AUTH_DENIED", 1)] == [
        (record.outcome, record.reason, len(record.attempts)) for record in fleet.records
    ]


async def test_the_process_is_protected_by_a_limit_on_open_calls(
    fleet: Fleet, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GUARD-1: at most 4 096 open calls of one capability a process; what is over is refused before sending."""
    assert 4096 == MAX_OPEN_CALLS
    monkeypatch.setattr("reach.call.outbound.MAX_OPEN_CALLS", 3)
    bus = await fleet.connect()
    await bus.cards.card_for("subject.write")
    calls = [asyncio.create_task(bus.request("subject.write", timeout_s=0.4)) for _ in range(5)]
    replies = await asyncio.gather(*calls)
    refused = [reply.error for reply in replies if reply.error and reply.error.reason is Reason.OVERLOADED]
    assert [(3, 3)] * 2 == [(one.limit["used"], one.limit["allowed"]) for one in refused if one.limit]
    assert [0, 0, 1, 1, 1] == sorted(len(record.attempts) for record in fleet.records)
    assert {"a": 1} == (await bus.request("subject.echo", {"a": 1})).unwrap()


async def test_a_mistake_of_the_program_is_no_call(fleet: Fleet, instance: Instance) -> None:
    """What raises TypeError or ValueError was never a call, and leaves no record and no slot."""
    bus = await fleet.connect()
    with pytest.raises(TypeError):
        await bus.request("subject.echo", [1, 2])  # type: ignore[arg-type]
    with pytest.raises(reach.NotOnTheWire):
        await bus.request("subject.echo", {"n": 2**70})
    with pytest.raises(TypeError, match="timeout"):
        await bus.request("subject.echo", {}, timeout=3)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="timeout_s"):
        await bus.request("subject.echo", {}, timeout_s=-1)
    assert [] == fleet.records
    assert 0 == bus._core.outbound.open_calls
