"""A call that arrives, and one that cannot: what its reply says, and that its values come through."""

import asyncio
import datetime as dt
import uuid
from decimal import Decimal
from enum import Enum
from time import monotonic
from typing import Any

import pytest
from pydantic import BaseModel

import reach
from reach.bus.framing import Delivery
from reach.bus.keys import Role
from reach.faults import FAULTS, Code, Executed, Reason
from reach.wire import codec
from tests.runtime.fleet import Fleet

CALM = FAULTS[Code.CONN_REFUSED, Reason.NO_RESPONDERS].en


def echo_agent(name: str = "echo") -> reach.Agent:
    agent = reach.Agent(name)

    @agent.capability("echo.say", idempotent=True)
    async def say(params: dict[str, Any]) -> dict[str, Any]:
        return params

    return agent


async def test_a_reply_says_who_answered_and_how(fleet: Fleet) -> None:
    """CALL-10: a reply names provider, instance, attempt, latency, degradation and its reach_id."""
    instance = await fleet.serve(echo_agent())
    bus = await fleet.connect()
    reply = await bus.request("echo.say", {"text": "hello"})
    assert (True, {"text": "hello"}) == (reply.ok, reply.data)
    assert ("echo", instance.name, 1) == (reply.provider, reply.instance, reply.attempt)
    assert (False, 0) == (reply.degraded, reply.degrade_level)
    assert reply.latency_ms > 0
    assert [reply.reach_id] == [record.reach_id for record in fleet.records]


async def test_a_failed_reply_says_the_same(fleet: Fleet) -> None:
    """CALL-10: on failure too, and the trace's hops come along."""
    agent = reach.Agent("bad")

    @agent.capability("bad.luck")
    async def luck() -> None:
        raise RuntimeError

    instance = await fleet.serve(agent)
    bus = await fleet.connect()
    reply = await bus.request("bad.luck")
    assert ("bad", instance.name, 1) == (reply.provider, reply.instance, reply.attempt)
    assert reply.latency_ms > 0
    assert [reply.reach_id] == [record.reach_id for record in fleet.records]
    assert reply.trace is not None
    assert [(instance.name, "UPSTREAM_5XX")] == [(hop.node, hop.status) for hop in reply.trace.hops]


async def test_hops_come_with_a_success_when_asked_for(fleet: Fleet) -> None:
    """`trace=True` gives the hops of a call that worked, from the caller on; without it they stay away."""
    instance = await fleet.serve(echo_agent())
    bus = await fleet.connect()
    asked = await bus.request("echo.say", {}, trace=True)
    plain = await bus.request("echo.say", {})
    assert plain.trace is None
    assert asked.trace is not None
    assert [(bus.connection.who, "echo.say"), (instance.name, None)] == [
        (hop.node, hop.forwarded_to) for hop in asked.trace.hops
    ]


async def test_the_hops_of_nested_calls_come_along(fleet: Fleet) -> None:
    """Design, trace: hops accumulate on the way back, of a failure always, of a success when asked for."""
    outer = reach.Agent("outer")

    @outer.capability("outer.ask")
    async def ask(ctx: reach.Context, fail: bool) -> Any:
        return (await ctx.bus.request("inner.do", {"fail": fail})).unwrap()

    inner = reach.Agent("inner")

    @inner.capability("inner.do")
    async def do(fail: bool) -> str:
        if fail:
            raise ValueError
        return "done"

    above, below = await fleet.serve(outer), await fleet.serve(inner)
    bus = await fleet.connect()
    failed = await bus.request("outer.ask", {"fail": True})
    assert failed.trace is not None
    assert [(above.name, "UPSTREAM_5XX"), (below.name, "UPSTREAM_5XX")] == [
        (hop.node, hop.status) for hop in failed.trace.hops
    ]
    asked = await bus.request("outer.ask", {"fail": False}, trace=True)
    assert asked.trace is not None
    assert [bus.connection.who, above.name, "outer", below.name] == [hop.node for hop in asked.trace.hops]
    again = await bus.request("outer.ask", {"fail": False})
    assert again.trace is None


async def test_both_spellings_of_a_capability_are_one(fleet: Fleet) -> None:
    """`"cap.echo.say"` and `"echo.say"` are the same capability."""
    await fleet.serve(echo_agent())
    bus = await fleet.connect()
    assert {"a": 1} == (await bus.request("cap.echo.say", {"a": 1})).unwrap()
    assert ["echo.say"] == [record.capability for record in fleet.records]


class Colour(Enum):
    RED = "red"


class Part(BaseModel):
    name: str
    weight: Decimal


class Order(BaseModel):
    """Everything that CALL-8 names."""

    raw: bytes
    when: dt.datetime
    day: dt.date
    lasts: dt.timedelta
    id: uuid.UUID
    price: Decimal
    tags: set[str]
    colour: Colour
    parts: list[Part]
    big: int
    low: int
    none: None = None


ORDER = Order(
    raw=b"\x00\xff",
    when=dt.datetime(2027, 1, 5, 12, 30, tzinfo=dt.timezone(dt.timedelta(hours=8))),
    day=dt.date(2027, 1, 5),
    lasts=dt.timedelta(hours=1, seconds=2.5),
    id=uuid.UUID("6b0c1a9e-5b57-4f5e-9a3d-0f6f6b0c1a9e"),
    price=Decimal("19.990"),
    tags={"b", "a"},
    colour=Colour.RED,
    parts=[Part(name="Zoë 发票", weight=Decimal("0.1"))],
    big=2**64 - 1,
    low=-(2**63),
)


async def test_values_of_all_documented_kinds_round_trip_through_a_typed_model(fleet: Fleet) -> None:
    """CALL-8, case 19: bytes, aware times, ids, decimals, sets, enums and models arrive as what they were."""
    agent = reach.Agent("typed")
    seen: list[Order] = []

    @agent.capability("typed.order")
    async def order(params: Order) -> Order:
        seen.append(params)
        return params

    await fleet.serve(agent)
    bus = await fleet.connect()
    reply = await bus.request("typed.order", ORDER)
    assert [ORDER] == seen
    assert ORDER == Order.model_validate(reply.unwrap())
    assert "19.990" == str(Order.model_validate(reply.data).price)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"lines": [{"n": 2**64}]}, "lines[0].n"),
        ({"text": "\ud800"}, "text"),
        ({"map": {1: 2}}, "map[1]"),
        ({"when": dt.datetime(2027, 1, 5)}, "when"),  # noqa: DTZ001 - a naive time is what is refused
        ({"thing": object()}, "thing"),
    ],
)
async def test_values_that_cannot_cross_are_refused_by_path_before_sending(
    fleet: Fleet, value: dict[str, Any], path: str
) -> None:
    """CALL-8, case 19: such a value raises `NotOnTheWire` with its path, and nothing is sent."""
    await fleet.serve(echo_agent())
    bus = await fleet.connect()
    with pytest.raises(reach.NotOnTheWire) as refused:
        await bus.request("echo.say", value)
    assert refused.value.path.endswith(path)
    assert 0 == bus.pending


async def test_an_unknown_capability_is_told_at_once_and_calmly(fleet: Fleet) -> None:
    """CALL-13, ERR-4: nobody serves it, so the calm sentence comes at once, not at the deadline."""
    await fleet.serve(echo_agent())
    bus = await fleet.connect()
    began = monotonic()
    reply = await bus.request("echo.sai", {}, timeout_s=30)
    assert monotonic() - began < 2.0
    assert reply.error is not None
    assert (Code.CONN_REFUSED, Reason.NO_RESPONDERS, Executed.NO) == (
        reply.error.code,
        reply.error.reason,
        reply.error.executed,
    )
    assert reply.error.message.startswith(CALM)
    assert "echo.say" in reply.error.message


async def test_a_call_that_requires_what_nobody_has_is_told_calmly(fleet: Fleet) -> None:
    """CALL-12, ERR-4: nobody meets the requirement: the calm sentence first, then what each lacks."""
    agent = reach.Agent("german", langs=("de",))

    @agent.capability("text.read")
    async def read() -> str:
        return "gelesen"

    instance = await fleet.serve(agent)
    bus = await fleet.connect()
    assert "gelesen" == (await bus.request("text.read", require={"lang": "de"})).unwrap()
    reply = await bus.request("text.read", require={"lang": "zh"})
    assert reply.error is not None
    assert (Reason.NO_RESPONDERS, Executed.NO) == (reply.error.reason, reply.error.executed)
    assert reply.error.message.startswith(CALM)
    assert instance.name in reply.error.message
    assert "lang='zh'" in reply.error.message


async def test_parameters_of_the_wrong_structure_are_refused_without_a_message(fleet: Fleet) -> None:
    """Design, admit: what a card's schema forbids is refused at the caller; it costs no message."""
    agent = reach.Agent("strict")

    @agent.capability("strict.add")
    async def add(a: int, b: int) -> int:
        return a + b

    instance = await fleet.serve(agent)
    bus = await fleet.connect()
    assert 3 == (await bus.request("strict.add", {"a": 1, "b": 2})).unwrap()
    reply = await bus.request("strict.add", {"a": 1})
    assert reply.error is not None
    assert (Code.SCHEMA_INVALID, Reason.SCHEMA, Executed.NO) == (
        reply.error.code,
        reply.error.reason,
        reply.error.executed,
    )
    assert "b" in reply.error.message
    assert [1] == [one.done for one in instance.served]


async def test_a_denied_publish_fails_its_call_at_once(fleet: Fleet) -> None:
    """ERR-1, design security: the broker's refusal is the call's failure, not its timeout."""
    agent = reach.Agent("locked")

    @agent.capability("locked.door")
    async def door() -> None:
        return None

    await fleet.serve(agent)
    bus = await fleet.connect(Role.FENCER)
    began = monotonic()
    reply = await bus.request("locked.door", timeout_s=30)
    assert monotonic() - began < 2.0
    assert reply.error is not None
    assert (Reason.AUTH_DENIED, Executed.NO) == (reply.error.reason, reply.error.executed)


async def test_a_plain_request_of_a_stream_gives_the_list_of_its_parts(fleet: Fleet) -> None:
    """`request` gets one reply, whatever the capability is: of a stream, all parts at once."""
    agent = reach.Agent("parts")

    @agent.capability("parts.list")
    async def parts(count: int) -> Any:
        for number in range(count):
            await asyncio.sleep(0.02)
            yield {"n": number}

    await fleet.serve(agent)
    bus = await fleet.connect()
    reply = await bus.request("parts.list", {"count": 3}, timeout_s=5)
    assert [{"n": 0}, {"n": 1}, {"n": 2}] == reply.unwrap()


async def test_an_envelope_may_be_sent_twice(fleet: Fleet) -> None:
    """One Envelope object, two calls at once: each reply finds its own, and the object is as it was."""
    await fleet.serve(echo_agent())
    bus = await fleet.connect()
    envelope = reach.Envelope(payload={"a": 1}, session_id="s-1")
    before = envelope.to_map()
    replies = await asyncio.gather(bus.request("echo.say", envelope), bus.request("echo.say", envelope))
    assert [{"a": 1}, {"a": 1}] == [reply.data for reply in replies]
    assert 2 == len({reply.reach_id for reply in replies})
    assert before == envelope.to_map()


async def test_a_name_that_fits_no_subject_is_refused_with_the_nearest_that_would(fleet: Fleet) -> None:
    """CALL-9: names are checked before they touch a subject."""
    bus = await fleet.connect()
    for name in ("Echo Say", "echo..say", "echo.>", "echo.*", "echo.say\r\nPUB x 0", ""):
        with pytest.raises(reach.NameRefused):
            await bus.request(name, {})
    with pytest.raises(reach.NameRefused) as refused:
        await bus.request("Echo.Say", {})
    assert "echo.say" == refused.value.nearest


async def test_names_inside_an_envelope_are_checked_as_options_are(fleet: Fleet) -> None:
    """CALL-9: an envelope may come from anywhere, and its `target` goes into a subject."""
    bus = await fleet.connect()
    for name in ("target", "session_id", "task_id", "tenant"):
        with pytest.raises(reach.NameRefused, match=name):
            await bus.request("echo.say", reach.Envelope(payload={}, **{name: "x 0\r\n\r\nPUB y"}))
        with pytest.raises(reach.NameRefused, match=name):
            await bus.request("echo.say", {"version": 1, "message_id": "m", "payload": {}, name: "a b"})


async def test_nobody_can_accept_a_call_under_a_name_that_is_an_order(fleet: Fleet) -> None:
    """CALL-9: who accepts under a name that is none has not answered as promised; the caller's link lives on."""
    connection = await fleet.connection(Role.AGENT)

    def accept(asked: Delivery) -> None:
        body = {"instance": "x 0\r\n\r\nPUB y", "generation": 1}
        connection.publish(asked.reply, codec.pack_plain({"stream_id": "m", "seq": 0, "accepted": body}))

    connection.subscribe("cap.sly.accept", accept, queue="reach")
    await connection.flush()
    bus = await fleet.connect()
    reply = await bus.request("sly.accept", timeout_s=5)
    assert reply.error is not None
    assert Reason.NON_JSON_BODY == reply.error.reason
    assert Reason.NON_JSON_BODY == (await bus.request("sly.accept", timeout_s=5)).error.reason


async def test_a_tenant_with_an_accent_is_refused_as_token_and_kept_as_text(fleet: Fleet) -> None:
    """CALL-9, case 7: ids are one ASCII token; non-ASCII text round-trips where it is text."""
    agent = reach.Agent("named", display_name="Zoë’s agent")

    @agent.capability("named.echo")
    async def echo(params: dict[str, Any]) -> dict[str, Any]:
        return params

    await fleet.serve(agent)
    bus = await fleet.connect()
    with pytest.raises(reach.NameRefused) as refused:
        await bus.request("named.echo", {}, tenant="Zoë")
    assert refused.value.nearest is not None
    assert {"who": "Zoë"} == (await bus.request("named.echo", {"who": "Zoë"})).unwrap()
    cards = await bus.cards.instances("named.echo")
    assert ["Zoë’s agent"] == [card.display_name for card in cards]


async def test_nonsense_in_an_answers_place_is_the_far_ends_failure(fleet: Fleet) -> None:
    """ERR-3: what is no reply is NON_JSON_BODY (never SCHEMA_INVALID: the caller did nothing wrong), and not echoed."""
    connection = await fleet.connection(Role.AGENT)
    connection.subscribe(
        "cap.babble.on", lambda asked: connection.publish(asked.reply, b"<html>502 secret"), queue="reach"
    )
    await connection.flush()
    bus = await fleet.connect()
    reply = await bus.request("babble.on", timeout_s=5)
    assert reply.error is not None
    assert (Code.UPSTREAM_5XX, Reason.NON_JSON_BODY, Executed.MAYBE) == (
        reply.error.code,
        reply.error.reason,
        reply.error.executed,
    )
    assert "html" not in reply.error.message


async def test_a_call_can_be_sent_to_one_agent_a_region_or_a_version(fleet: Fleet) -> None:
    """CALL-12: `target` names an agent, `require` excludes, `prefer` weighs."""
    for name, region, version in (("north", "n", "1.0.0"), ("south", "s", "2.0.0")):
        agent = reach.Agent(name, region=region, version=version, labels={"tier": name[0]})

        @agent.capability("where.are")
        async def where(ctx: reach.Context) -> str:
            return ctx.instance.partition("-")[0]

        await fleet.serve(agent)
    bus = await fleet.connect()
    await bus.cards.instances("where.are")
    for _ in range(5):
        assert "south" == (await bus.request("where.are", target="south")).unwrap()
        assert "north" == (await bus.request("where.are", require={"region": "n"})).unwrap()
        assert "south" == (await bus.request("where.are", require={"version": "2.0.0"})).unwrap()
        assert "north" == (await bus.request("where.are", prefer={"tier": "n"})).unwrap()
    missing = (await bus.request("where.are", target="east")).error
    assert missing is not None
    assert Reason.NO_RESPONDERS is missing.reason
    assert "No agent 'east' serves 'where.are'; there are: north, south." in missing.message


async def test_a_view_carries_options_and_shares_everything_else(fleet: Fleet) -> None:
    """`with_options` gives a light view; what a call says itself wins."""
    agent = reach.Agent("viewed")

    @agent.capability("viewed.look")
    async def look(ctx: reach.Context) -> dict[str, Any]:
        return {"session": ctx.session_id, "left": ctx.time_left_s, "tenant": ctx.tenant}

    await fleet.serve(agent)
    bus = await fleet.connect()
    view = bus.with_options(session_id="s-1", timeout_s=3).with_options(tenant="north")
    seen = (await view.request("viewed.look")).unwrap()
    assert ("s-1", "north") == (seen["session"], seen["tenant"])
    assert seen["left"] <= 3
    own = (await view.request("viewed.look", session_id="s-2")).unwrap()
    assert "s-2" == own["session"]
    assert (await bus.request("viewed.look")).unwrap()["session"] is None
    assert view.connection is bus.connection
