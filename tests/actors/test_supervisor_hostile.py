"""Messages that nobody sensible sends: a supervisor refuses each by name, or leaves it, and leads on."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from reach.bus.keys import Role
from reach.errors import SchemaInvalid
from reach.wire import codec, subjects
from reach.wire.bounds import MOST_CAPABILITIES
from reach.wire.card import CapabilityCard
from reach.wire.registration import RouteAnswer, RouteVerb, read_answer
from tests.chaos.supervisor_rig import ANSWER_S, SupervisorRig, agent, card, opened

NAN, ENDLESS = float("nan"), float("inf")
NUMBERS = (NAN, ENDLESS, -1, 0, 1e308, 5e-324, 2**63 - 1, 2**63, 2**64 - 1)
COUNTS = ("ok", "failed", "excused", "slow", "failed_in_a_row", "retries", "cost")
BEATS = ("generation", "at", "inflight", "lease_ttl_s", "queue", "cpu", "rss_bytes", "loop_lag_ms", "term")
BYTES = (
    b"",
    b"null",
    b"[]",
    b"{}",
    b"\xc1",
    b"[" * 100_000,
    b"\x91" * 100_000,
    b"\xdf\xff\xff\xff\xff",
    b"\xff{}",
)


@pytest.fixture
async def rig(own_system: Any, tmp_path: Path) -> AsyncIterator[SupervisorRig]:
    """A server with its buckets, and nobody on it yet."""
    async with opened(own_system, tmp_path) as rig:
        yield rig


async def term(rig: SupervisorRig) -> int:
    """Whose term it is, once everything that was sent before is taken in: two ticks later."""
    await asyncio.sleep(0.2)
    return (await rig.command(RouteVerb.SHOW, capability="job.do")).term


async def test_what_nobody_is_asked_about_ends_no_leadership(rig: SupervisorRig) -> None:
    """Absurd numbers in heartbeats and digests, and bytes that are no message, on every subject: the same one leads."""
    async with rig.supervisor():
        served, _ = await rig.serve(agent("reader"))
        began = await term(rig)
        instance, caller = await rig.connection(Role.AGENT), await rig.connection(Role.CALLER)
        about = {"agent_id": "reader", "instance": served.name, "generation": served.generation, "at": 1}
        for name in BEATS:
            for number in NUMBERS:
                instance.publish(subjects.heartbeat(served.name), codec.pack({**about, name: number}))
        sequence = 0
        for name in COUNTS:
            for number in (*NUMBERS, 2**40, 2**40):
                sequence += 1
                lane = {"provider": "reader", "capability": "job.do", "ok": 1, name: number}
                digest = {
                    "client": "c",
                    "boot": 1,
                    "seq": sequence,
                    "at": 1,
                    "span_ms": 1000,
                    "lanes": [lane],
                }
                caller.publish(subjects.outcomes("c"), codec.pack(digest))
        for data in BYTES:
            for connection, subject in (
                (instance, subjects.heartbeat("x")),
                (instance, subjects.goodbye("x")),
                (instance, subjects.REGISTER),
                (caller, subjects.outcomes("c")),
                (caller, subjects.suspect("job.do")),
                (caller, subjects.permit("reader", "job.do")),
            ):
                connection.publish(subject, data)
        await instance.flush()
        await caller.flush()
        assert began == await term(rig)


@pytest.mark.parametrize(
    ("verb", "fields", "named"),
    [
        (RouteVerb.SET, {"weights": {"reader": NAN}}, "weights.reader"),
        (RouteVerb.SET, {"weights": {"reader": 1e308}}, "weights.reader"),
        (RouteVerb.SET, {"weights": {"raeder": 1}}, "it is served by reader"),
        (RouteVerb.SET, {"limits": {"reader": 0}}, "limits.reader"),
        (RouteVerb.SET, {"limits": {"reader": 2**63}}, "limits.reader"),
        (RouteVerb.SET, {"limits": {"raeder": 5}}, "it is served by reader"),
        (RouteVerb.SET, {"limits_off": ["raeder"]}, "it is served by reader"),
        (RouteVerb.SET, {"reset_quality": ["raeder"]}, "it is served by reader"),
        (RouteVerb.SET, {"strategy": {"name": "static"}}, "a static split says the parts"),
        (
            RouteVerb.SET,
            {"strategy": {"name": "static", "shares": [{"provider": "raeder"}]}},
            "served by reader",
        ),
        (RouteVerb.CANARY, {"canary": {"version": "", "percent": 5}}, "names a version or labels"),
        (RouteVerb.CANARY, {"canary": {"version": "2", "percent": NAN}}, "canary.percent"),
        (RouteVerb.CANARY, {"canary": {"version": "2", "callers": ["a b"]}}, "canary.callers"),
        (RouteVerb.OPEN, {"provider": "reader", "reason": "r" * 600_000}, "reason"),
        (RouteVerb.OPEN, {"provider": "reader", "by": "b" * 600_000}, "by"),
    ],
)
async def test_absurd_commands_are_refused_by_name(
    rig: SupervisorRig, verb: RouteVerb, fields: dict[str, Any], named: str
) -> None:
    """What is wrong is named, the table stays as it was, and the next command is obeyed."""
    async with rig.supervisor():
        await rig.serve(agent("reader"))
        before = (await rig.command(RouteVerb.SHOW, capability="job.do")).after
        with pytest.raises(SchemaInvalid, match=named):
            await rig.command(verb, capability="job.do", **fields)
        assert before == (await rig.command(RouteVerb.SHOW, capability="job.do")).after
        assert (await rig.command(RouteVerb.SET, capability="job.do", weights={"reader": 2})).in_force


@pytest.mark.parametrize("timeout_s", [0, NAN, ENDLESS, 1e9])
async def test_nobody_is_drained_for_ever(rig: SupervisorRig, timeout_s: float) -> None:
    """A drain that never ends is refused; nobody is drained by it."""
    async with rig.supervisor():
        served, _ = await rig.serve(agent("reader"))
        operator = await rig.connection(Role.OPERATOR)
        order = codec.pack({"by": "a test", "target": "reader", "timeout_s": timeout_s})
        answer = await operator.request(subjects.route(RouteVerb.DRAIN), order, timeout_s=ANSWER_S)
        with pytest.raises(SchemaInvalid, match="timeout_s"):
            read_answer(answer, RouteAnswer)
        assert "draining" != (await rig.rows())[served.name].state


@pytest.mark.parametrize(
    ("field", "value"),
    [("generation", 2**63), ("generation", -1), ("lease_ttl_s", 5e-324), ("lease_ttl_s", 1e308)],
)
async def test_absurd_cards_are_refused_by_name(rig: SupervisorRig, field: str, value: Any) -> None:
    """The field is named, without a word of what the supervisor is made of; nothing of the card is kept."""
    async with rig.supervisor():
        await rig.serve(agent("reader"))
        began = await term(rig)
        asked = {"card": {**card(1).model_dump(mode="json"), field: value}}
        instance = await rig.connection(Role.AGENT)
        answer = codec.unpack(
            await instance.request(subjects.REGISTER, json.dumps(asked).encode(), timeout_s=ANSWER_S)
        )
        message = answer["error"]["message"]
        assert (True, False) == (f"card.{field}" in message, "pydantic" in message)
        assert began == await term(rig)


async def test_more_capabilities_than_a_lease_can_be_worked_out_in_are_taken_over(rig: SupervisorRig) -> None:
    """Eight thousand capabilities, registered by eight instances: the next supervisor leads, and knows all."""
    async with rig.supervisor():
        await rig.serve(agent("reader"))
        for number in range(8):
            tags = (f"many.i{number}.c{one}" for one in range(MOST_CAPABILITIES))
            offered = tuple(CapabilityCard(tag=tag) for tag in tags)
            await rig.register(card(number).model_copy(update={"capabilities": offered}))

        async def written() -> bool:
            return await rig.entry(f"many.i7.c{MOST_CAPABILITIES - 1}") is not None

        async with asyncio.timeout(20):
            while not await written():  # noqa: ASYNC110 - asked of a server
                await asyncio.sleep(0.1)
    async with rig.supervisor():
        first = (await rig.command(RouteVerb.SHOW, capability="many.i0.c0")).term
        await asyncio.sleep(3)  # Longer than the leader's key lives.
        last = await rig.command(RouteVerb.SHOW, capability=f"many.i7.c{MOST_CAPABILITIES - 1}")
        assert (first, True) == (last.term, last.after is not None)


async def test_an_instance_with_everything_that_it_may_serve_costs_no_leadership(rig: SupervisorRig) -> None:
    """A thousand capabilities register, and with them each further instance; one more is refused."""
    async with rig.supervisor():
        await rig.serve(agent("reader"))
        began = await term(rig)
        offered = tuple(CapabilityCard(tag=f"many.c{number}") for number in range(MOST_CAPABILITIES))
        for number in (1, 2):
            told = await rig.register(card(number).model_copy(update={"capabilities": offered}))
            assert MOST_CAPABILITIES == len(told.tickets)
        with pytest.raises(SchemaInvalid, match=f"at most {MOST_CAPABILITIES}"):
            await rig.register(
                card(3).model_copy(update={"capabilities": (*offered, CapabilityCard(tag="one.more"))})
            )
        assert began == await term(rig)
