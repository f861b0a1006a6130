"""Payloads of all sizes: in one message, through the blob store, and refused with both sizes named (CALL-7)."""

import asyncio
from time import monotonic
from typing import Any

import pytest

import reach
from reach.bus.blobs import Blobs
from reach.bus.keys import Role
from reach.faults import Code, Executed, Reason
from reach.runtime.instance import Instance
from reach.wire import codec
from reach.wire.envelope import Envelope
from tests.runtime.fleet import Fleet

MEGABYTE = 1024 * 1024


def sizes_agent() -> reach.Agent:
    agent = reach.Agent("sizes")

    @agent.capability("sizes.echo", idempotent=True)
    async def echo(params: dict[str, Any]) -> dict[str, Any]:
        return params

    @agent.capability("sizes.make")
    async def make(size: int, of: str = "x") -> Any:
        return of * size

    @agent.capability("sizes.small", max_payload_bytes=10_000)
    async def small(params: dict[str, Any]) -> int:
        return len(params)

    return agent


@pytest.fixture
async def instance(fleet: Fleet) -> Instance:
    """The agent."""
    return await fleet.serve(sizes_agent())


@pytest.fixture
async def bus(fleet: Fleet, instance: Instance) -> reach.Bus:
    """A caller that knows the agent."""
    return await fleet.connect()


@pytest.mark.parametrize(
    "value",
    [b"\x00\xff\x80" * MEGABYTE, "Zoë 发票 🧾" * 150_000, ["x" * 1000] * 3000],
    ids=["bytes", "text", "list"],
)
async def test_three_megabytes_go_through_both_ways(bus: reach.Bus, value: object) -> None:
    """CALL-7: what does not fit one message goes through the blob store, unseen, request and result alike."""
    reply = await bus.request("sizes.echo", {"value": value}, timeout_s=20)
    assert {"value": value} == reply.unwrap()
    assert reply.blob is None


@pytest.mark.parametrize("over", range(-6000, 6001, 1500))
async def test_sizes_around_the_broker_limit_all_arrive(bus: reach.Bus, over: int) -> None:
    """Case 6: one byte over or under the limit, headers and envelope counted, makes no difference to the caller."""
    value = "x" * (bus.connection.max_payload + over)
    assert {"value": value} == (await bus.request("sizes.echo", {"value": value}, timeout_s=20)).unwrap()
    assert 1 == bus.connection.epoch


async def test_fifty_megabytes_are_refused_before_sending_with_both_sizes_named(
    fleet: Fleet, bus: reach.Bus, instance: Instance
) -> None:
    """CALL-7: over the card's `max_payload_bytes` (32 MiB by default) nothing is sent."""
    await bus.request("sizes.echo", {})
    reply = await bus.request("sizes.echo", {"value": b"x" * (50 * 1_000_000)}, timeout_s=20)
    assert reply.error is not None
    assert (Code.SCHEMA_INVALID, Reason.TOO_LARGE, Executed.NO, False) == (
        reply.error.code,
        reply.error.reason,
        reply.error.executed,
        reply.error.retryable,
    )
    assert "50000012" in reply.error.message
    assert str(32 * MEGABYTE) in reply.error.message
    assert [1] == [one.done for one in instance.served if one.name == "sizes.echo"]
    assert [0] == [len(record.attempts) for record in fleet.records if record.outcome == "failed"]


async def test_a_card_may_take_less_than_one_message(bus: reach.Bus, instance: Instance) -> None:
    """CALL-7: `max_payload_bytes` below the broker's limit holds too, and nothing is sent."""
    reply = await bus.request("sizes.small", {"value": "x" * 20_000})
    assert reply.error is not None
    assert (Reason.TOO_LARGE, Executed.NO) == (reply.error.reason, reply.error.executed)
    assert "10000" in reply.error.message
    assert 1 == (await bus.request("sizes.small", {"value": "x" * 9_000})).unwrap()
    assert [(1, 0)] == [(one.done, one.refused) for one in instance.served if one.name == "sizes.small"]


async def test_the_agent_holds_its_limit_against_callers_that_do_not_know_it(
    fleet: Fleet, instance: Instance
) -> None:
    """CALL-7: a plain caller reads no card; the agent refuses before the handler, naming both sizes."""
    client = await fleet.stranger()
    body = b'{"value": "' + b"x" * 20_000 + b'"}'
    reply = codec.unpack((await client.request("cap.sizes.small", body, timeout=5)).data)
    assert ("TOO_LARGE", "no") == (reply["error"]["reason"], reply["error"]["executed"])
    assert "10000" in reply["error"]["message"]
    assert "20013" in reply["error"]["message"]


async def test_a_blob_over_the_card_limit_is_refused_before_fetching(
    fleet: Fleet, instance: Instance
) -> None:
    """CALL-7: the agent looks at the size before it fetches anything."""
    blobs = Blobs(await fleet.connection())
    ref = await blobs.put(codec.pack({"value": "x" * 20_000}), bucket="reach_blobs_1h")
    client = await fleet.stranger()
    envelope = Envelope(payload={}, blob=ref)
    reply = codec.unpack((await client.request("cap.sizes.small", envelope.pack(), timeout=5)).data)
    assert ("SCHEMA_INVALID", "TOO_LARGE", "no") == (
        reply["error"]["code"],
        reply["error"]["reason"],
        reply["error"]["executed"],
    )
    assert str(ref["size"]) in reply["error"]["message"]


async def test_a_vanished_blob_is_told_as_not_done(fleet: Fleet, instance: Instance) -> None:
    """A reference to what is not there any more: refused in structure, executed=no, at once."""
    blobs = Blobs(await fleet.connection(Role.AGENT))
    ref = await blobs.put(codec.pack({"value": 1}), bucket="reach_blobs_1h")
    await blobs.delete(ref)
    client = await fleet.stranger()
    began = monotonic()
    envelope = Envelope(payload={}, blob=ref)
    reply = codec.unpack((await client.request("cap.sizes.echo", envelope.pack(), timeout=9)).data)
    assert monotonic() - began < 4.0
    assert ("UPSTREAM_4XX", "NOT_FOUND", "no") == (
        reply["error"]["code"],
        reply["error"]["reason"],
        reply["error"]["executed"],
    )


async def test_a_result_over_the_card_limit_is_refused_with_both_sizes(bus: reach.Bus) -> None:
    """CALL-7: the handler has run, so the failure says executed=yes, and how large is too large."""
    reply = await bus.request("sizes.make", {"size": 40 * 1_000_000}, timeout_s=20)
    assert reply.error is not None
    assert (Reason.BAD_RESULT, Executed.YES) == (reply.error.reason, reply.error.executed)
    assert str(32 * MEGABYTE) in reply.error.message
    assert "40000" in reply.error.message


async def test_a_large_result_of_a_broadcast_and_of_a_stream_request_arrives(bus: reach.Bus) -> None:
    """CALL-7: the claim check works for every shape of call."""
    value = {"value": b"x" * (2 * MEGABYTE)}
    assert [value] == [reply.unwrap() async for reply in bus.broadcast("sizes.echo", value)]
    assert [value] == [part async for part in bus.stream("sizes.echo", value)]


async def test_an_envelope_too_large_without_its_payload_is_refused(fleet: Fleet, bus: reach.Bus) -> None:
    """Case 6: what cannot go into the blob store (context, requirements) is refused by size; the link lives."""
    excerpt = "x" * (2 * MEGABYTE)
    reply = await bus.request("sizes.echo", {"a": 1}, trigger={"prompt_excerpt": excerpt})
    assert reply.error is not None
    assert (Reason.TOO_LARGE, Executed.NO) == (reply.error.reason, reply.error.executed)
    assert {"a": 1} == (await bus.request("sizes.echo", {"a": 1})).unwrap()
    assert ["failed", "ok"] == [record.outcome for record in fleet.records]
    assert 1 == bus.connection.epoch


async def test_ten_large_calls_at_once_arrive_each_with_its_own_value(bus: reach.Bus) -> None:
    """Transfers share a client without mixing up."""
    values = [{"value": bytes([number]) * (MEGABYTE + 1)} for number in range(10)]
    replies = await asyncio.gather(*(bus.request("sizes.echo", value, timeout_s=30) for value in values))
    assert values == [reply.unwrap() for reply in replies]


async def test_the_time_that_uploading_took_is_not_the_agents(fleet: Fleet, bus: reach.Bus) -> None:
    """CALL-2: `timeout_ms` is what is left when the message is sent, not when its payload began to be stored."""
    agent = reach.Agent("clock")
    left: list[float] = []

    @agent.capability("clock.left")
    async def left_s(value: bytes, ctx: reach.Context) -> None:
        left.append(ctx.time_left_s)

    await fleet.serve(agent)
    core = bus._core
    put = core.blobs.put

    async def slow_put(data: bytes, *, bucket: str) -> dict[str, Any]:
        await asyncio.sleep(0.5)
        return await put(data, bucket=bucket)

    core.blobs.put = slow_put  # type: ignore[method-assign]
    began = monotonic()
    (await bus.request("clock.left", {"value": b"x" * 2 * MEGABYTE}, timeout_s=5)).unwrap()
    assert monotonic() - began >= 0.5
    assert left[0] < 4.5
