"""Callers that never heard of us: bare NATS clients, bare parameters, and bodies that are no body at all.

Whoever asks gets exactly one message, in the form in which it asked, and it is what the published contract
says (design: the wire; behaviour CALL-7).
"""

import asyncio
import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import msgpack
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

import reach
from reach.bus.blobs import Blobs
from reach.bus.keys import Role
from tests.contract.tap import Tap
from tests.runtime.fleet import Fleet, eventually
from tests.wire.contract import assert_matches_contract


def agent() -> reach.Agent:
    agent = reach.Agent("plain")

    @agent.capability("plain.echo")
    async def echo(params: dict[str, Any]) -> dict[str, Any]:
        return params

    @agent.capability("plain.add")
    async def add(a: int, b: int = 0) -> dict[str, int]:
        return {"sum": a + b}

    @agent.capability("plain.slow")
    async def slow(params: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0.1)
        return params

    @agent.capability("plain.count")
    async def count(to: int) -> Any:
        for number in range(to):
            yield number

    @agent.capability("plain.values")
    async def values() -> dict[str, Any]:
        return {
            "raw": b"\x00\xff",
            "when": dt.datetime(2027, 1, 5, tzinfo=dt.UTC),
            "price": Decimal("19.90"),
            "tags": {"b", "a"},
            "big": 2**64 - 1,
        }

    @agent.capability("plain.nan")
    async def nan() -> dict[str, Any]:
        return {"rates": [1.0, float("nan")]}

    @agent.capability("plain.large")
    async def large(size: int) -> dict[str, Any]:
        return {"text": "x" * size}

    return agent


def envelope(payload: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"version": 1, "message_id": "mfrggzdfmztwq2lk", "payload": payload, **more}


class Asking:
    """Bare nats-py, with requests of its own so that a second answer would be seen."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def ask(self, subject: str, body: bytes) -> bytes:
        """Publish with a reply subject; the one message that comes back."""
        inbox = self.client.new_inbox()
        heard: list[Msg] = []
        arrived = asyncio.Event()

        async def take(message: Msg) -> None:
            heard.append(message)
            arrived.set()

        subscription = await self.client.subscribe(inbox, cb=take)
        await self.client.publish(subject, body, reply=inbox)
        async with asyncio.timeout(5.0):
            await arrived.wait()
        await self.client.flush()
        await asyncio.sleep(0.05)  # Long enough for an `accepted` frame or a second answer.
        await subscription.unsubscribe()
        assert 1 == len(heard)
        assert_matches_contract(inbox, heard[0].data)
        return bytes(heard[0].data)


@pytest.fixture
async def asking(fleet: Fleet) -> Asking:
    """A stranger beside one agent."""
    await fleet.serve(agent())
    return Asking(await fleet.stranger())


async def test_bare_json_through_bare_nats_is_answered_with_a_whole_json_reply(fleet: Fleet) -> None:
    """`nats req cap.plain.add '{"a": 2}'` works, and its answer says everything a Reply says."""
    instance = await fleet.serve(agent())
    client = await fleet.stranger()
    message = await client.request("cap.plain.add", b'{"a": 2, "b": 3}', timeout=5)
    reply = json.loads(message.data)
    assert (True, {"sum": 5}, None) == (reply["ok"], reply["data"], reply["error"])
    assert ("plain", instance.name, 1) == (reply["provider"], reply["instance"], reply["attempt"])
    assert (False, 0, True) == (reply["degraded"], reply["degrade_level"], reply["durable"])
    assert reply["latency_ms"] > 0
    assert reply["reach_id"].startswith("rch_")


async def test_a_json_envelope_is_answered_in_json_under_its_own_id(asking: Asking) -> None:
    """A body with version, message_id and payload is an envelope; its answer repeats the message_id."""
    reply = json.loads(await asking.ask("cap.plain.add", json.dumps(envelope({"a": 1})).encode()))
    assert (True, {"sum": 1}) == (reply["ok"], reply["data"])
    assert "mfrggzdfmztwq2lk" == reply["message_id"]


async def test_bare_msgpack_parameters_are_answered_in_msgpack(asking: Asking) -> None:
    """A msgpack map is parameters, and its answer is msgpack; bytes stay bytes."""
    data = await asking.ask("cap.plain.echo", msgpack.packb({"raw": b"\x00\xff", "text": "发票"}))
    reply = msgpack.unpackb(data)
    assert (True, {"raw": b"\x00\xff", "text": "发票"}) == (reply["ok"], reply["data"])


async def test_a_msgpack_envelope_is_answered_in_msgpack(asking: Asking) -> None:
    """The form of our own clients works for anybody."""
    reply = msgpack.unpackb(await asking.ask("cap.plain.add", msgpack.packb(envelope({"a": 4, "b": 4}))))
    assert (True, {"sum": 8}, "mfrggzdfmztwq2lk") == (reply["ok"], reply["data"], reply["message_id"])


async def test_an_action_is_unwrapped_inside_an_envelope_only(asking: Asking) -> None:
    """`{action, params}` is unwrapped in an envelope; as bare parameters it is what it is."""
    wrapped = {"action": "echo", "params": {"a": 1}}
    inside = json.loads(await asking.ask("cap.plain.echo", json.dumps(envelope(wrapped)).encode()))
    bare = json.loads(await asking.ask("cap.plain.echo", json.dumps(wrapped).encode()))
    assert [{"a": 1}, wrapped] == [inside["data"], bare["data"]]


async def test_an_empty_body_means_no_parameters(asking: Asking) -> None:
    """`nats req cap.plain.echo ''` is a call without parameters, answered in text that a person can read."""
    assert {} == json.loads(await asking.ask("cap.plain.echo", b""))["data"]


@pytest.mark.parametrize("subject", ["cap.plain.echo", "all.plain.echo", "lane.plain.plain.echo"])
async def test_each_request_subject_takes_plain_callers(asking: Asking, subject: str) -> None:
    """The queue group, the broadcast subject and a provider's lane are open to everybody."""
    assert {"a": 1} == json.loads(await asking.ask(subject, b'{"a": 1}'))["data"]


async def test_a_slow_answer_to_a_plain_caller_is_still_one_message(asking: Asking) -> None:
    """No `accepted` frame goes to a caller whose envelope does not say `frames`: it would be its answer."""
    assert {"a": 1} == json.loads(await asking.ask("cap.plain.slow", b'{"a": 1}'))["data"]


async def test_a_plain_caller_gets_a_stream_as_one_list(asking: Asking) -> None:
    """A caller that knows no frames gets exactly one message: the list of a stream's parts."""
    assert [0, 1, 2] == json.loads(await asking.ask("cap.plain.count", b'{"to": 3}'))["data"]


async def test_chinese_and_accented_text_round_trips_in_json(asking: Asking) -> None:
    """CALL-9: text is UTF-8 everywhere, and JSON is not escaped into ASCII."""
    data = await asking.ask("cap.plain.echo", '{"who": "Zoë 发票 🧾"}'.encode())
    assert {"who": "Zoë 发票 🧾"} == json.loads(data)["data"]
    assert "Zoë 发票 🧾".encode() in data


async def test_results_have_their_documented_form_in_json(asking: Asking) -> None:
    """CALL-8: bytes are marked base64, times ISO 8601, decimals text, sets lists; 64-bit integers are whole."""
    reply = json.loads(await asking.ask("cap.plain.values", b"{}"))
    assert {
        "raw": {"$bytes": "AP8="},
        "when": "2027-01-05T00:00:00+00:00",
        "price": "19.90",
        "tags": ["a", "b"],
        "big": 18446744073709551615,
    } == reply["data"]


async def test_bytes_are_taken_in_json_as_they_are_given(asking: Asking) -> None:
    """CALL-8: `{"$bytes": …}` is bytes to the handler, and comes back so."""
    reply = json.loads(await asking.ask("cap.plain.echo", b'{"raw": {"$bytes": "AP8="}}'))
    assert {"raw": {"$bytes": "AP8="}} == reply["data"]
    packed = msgpack.unpackb(await asking.ask("cap.plain.echo", msgpack.packb({"raw": b"\x00\xff"})))
    assert {"raw": b"\x00\xff"} == packed["data"]


async def test_nan_is_refused_in_json_by_its_path_and_crosses_in_msgpack(asking: Asking) -> None:
    """CALL-8: what JSON has no form for is the handler's bad result, told by path; msgpack has one."""
    error = json.loads(await asking.ask("cap.plain.nan", b"{}"))["error"]
    assert ("UPSTREAM_5XX", "BAD_RESULT", "yes") == (error["code"], error["reason"], error["executed"])
    assert "rates[1]" in error["message"]
    packed = msgpack.unpackb(await asking.ask("cap.plain.nan", msgpack.packb({})))
    assert packed["ok"]
    assert math.isnan(packed["data"]["rates"][1])


GARBAGE = {
    "cut json": b'{"a": 1',
    "json with a comma too many": b'{"a": 1,}',
    "json list": b"[1, 2]",
    "json text": b'"hello"',
    "prose": b"hello there",
    "leading space": b'  {"a": 1}',
    "msgpack list": msgpack.packb([1, 2]),
    "msgpack integer keys": msgpack.packb({1: 2}),
    "msgpack nil": msgpack.packb(None),
    "cut msgpack": msgpack.packb({"a": "some text"})[:-3],
    "msgpack extension": msgpack.packb({"a": msgpack.ExtType(7, b"x")}),
    "bad utf-8 in json": b'{"a": "\xff\xfe"}',
    "bad utf-8 in msgpack": b"\x81\xa1a\xa1\xff",
    "nan": b'{"a": NaN}',
    "huge integer": b'{"a": 123456789012345678901234567890}',
    "surrogate": b'{"a": "\\ud800"}',
    "deep": b'{"a":' * 100 + b"1" + b"}" * 100,
    "zeros": bytes(64),
    "random": bytes(range(255, 0, -1)),
}


@pytest.mark.parametrize("body", GARBAGE.values(), ids=GARBAGE.keys())
async def test_a_body_that_is_no_map_is_refused_by_type(asking: Asking, body: bytes) -> None:
    """Whatever arrives is answered: SCHEMA_INVALID/SCHEMA, executed=no, in words."""
    data = await asking.ask("cap.plain.echo", body)
    reply = json.loads(data) if data.startswith(b"{") else msgpack.unpackb(data)
    error = reply["error"]
    assert (False, "SCHEMA_INVALID", "SCHEMA", "no") == (
        reply["ok"],
        error["code"],
        error["reason"],
        error["executed"],
    )
    assert error["message"]


@pytest.mark.parametrize("name", ["cut json", "json list", "prose", "leading space"])
async def test_a_refused_text_is_refused_in_text(asking: Asking, name: str) -> None:
    """Whoever types a wrong body reads why: no map of msgpack begins with an ASCII byte, so its sender wrote text."""
    assert not json.loads(await asking.ask("cap.plain.echo", GARBAGE[name]))["ok"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 2),
        ("version", "1"),
        ("message_id", 7),
        ("payload", [1]),
        ("type", "letter"),
        ("timeout_ms", -1),
        ("timeout_ms", "soon"),
        ("priority", "urgent"),
        ("frames", 1),
        ("trace", "abc"),
        ("blob", {"bucket": "../secrets", "name": "x", "size": 1}),
        ("tenant", 7),
    ],
)
async def test_an_envelope_with_a_wrong_field_is_refused_by_its_name(
    asking: Asking, field: str, value: object
) -> None:
    """A refusal of an envelope names the field."""
    body = {**envelope({"a": 1}), field: value}
    error = json.loads(await asking.ask("cap.plain.echo", json.dumps(body).encode()))["error"]
    assert ("SCHEMA", "no") == (error["reason"], error["executed"])
    assert field in error["message"]


async def test_a_wrong_parameter_is_named_and_its_value_is_not(asking: Asking) -> None:
    """A validation error says which field, what was expected and what kind it got; never the value (ERR-5)."""
    error = json.loads(await asking.ask("cap.plain.add", b'{"a": "hunter2-secret", "c": 1}'))["error"]
    assert ("SCHEMA_INVALID", "no", "fix_params") == (error["code"], error["executed"], error["advice"])
    assert "a" in error["message"]
    assert "hunter2" not in error["message"]


async def test_a_result_too_large_for_one_message_is_answered_with_a_blob(fleet: Fleet) -> None:
    """CALL-7: JSON is answered in one message; what does not fit stands in the blob store, and the reply says where."""
    await fleet.serve(agent())
    asking = Asking(await fleet.stranger())
    reply = json.loads(await asking.ask("cap.plain.large", b'{"size": 3000000}'))
    assert (True, None) == (reply["ok"], reply["data"])
    assert {"bucket", "name", "size"} == reply["blob"].keys()
    body = await Blobs(await fleet.connection()).get(reply["blob"], limit=10_000_000)
    assert reply["blob"]["size"] == len(body)
    assert {"data": {"text": "x" * 3_000_000}} == json.loads(body)


async def test_a_plain_caller_of_a_capability_that_nobody_serves_is_told_at_once(fleet: Fleet) -> None:
    """CALL-13: the broker itself says that nobody listens; nothing of ours may listen plainly on requests."""
    await fleet.serve(agent())
    client = await fleet.stranger()
    with pytest.raises(NoRespondersError):
        await client.request("cap.plain.nothing", b"{}", timeout=5)


async def test_a_request_without_a_reply_subject_is_served_and_not_answered(fleet: Fleet) -> None:
    """Fire and forget from a script: the handler runs, nothing is published."""
    served: list[object] = []
    agent = reach.Agent("deaf")

    @agent.capability("deaf.note")
    async def note(params: dict[str, Any]) -> None:
        served.append(params)

    await fleet.serve(agent)
    tap = await Tap(await fleet.connection(Role.PLATFORM)).ready()
    client = await fleet.stranger()
    await client.publish("cap.deaf.note", b'{"n": 1}')
    await client.flush()
    await eventually(lambda: served)
    assert [{"n": 1}] == served
    assert {} == await tap.checked()


async def test_an_answer_never_goes_to_a_subject_that_means_something(fleet: Fleet) -> None:
    """A caller may name any reply subject; one that is an order or a request to others is not answered."""
    await fleet.serve(agent())
    tap = await Tap(await fleet.connection(Role.PLATFORM), "ctl.>", "reach.>").ready()
    client = await fleet.stranger()
    await client.publish("cap.plain.echo", b'{"a": 1}', reply="ctl.plain-aaaaaaaa.drain")
    await client.publish("cap.plain.echo", b"garbage", reply="reach.gone.plain-aaaaaaaa.1")
    await client.request("cap.plain.echo", b"{}", timeout=5)
    assert [] == tap.heard
