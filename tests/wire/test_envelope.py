"""The request: hand-written decoding and the published schema say the same of every map."""

import math
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from reach.errors import NotOnTheWire, SchemaInvalid
from reach.wire import codec, schema
from reach.wire.envelope import VERSION, Envelope, is_blob, is_envelope
from reach.wire.schema import described
from reach.wire.trace import Hop, Trace
from tests.wire.specimens import envelopes

VALID = Draft202012Validator(schema.json_schemas()["envelope"])
MODEL = TypeAdapter(described(Envelope))

NUMBERS = st.sampled_from(
    [-1, 0, 1, 5, 5.0, 5.5, -0.0, 2**63 - 1, 2**63, 2**64 - 1, 1e300, math.inf, math.nan]
)
WORDS = st.sampled_from(["", "x", "request", "stream", "task", "event", "core", "normal", "offline", "a\nb"])
ODD: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | NUMBERS | WORDS | st.binary(max_size=3) | st.just([]) | st.just({})
)
MAPS = st.dictionaries(st.sampled_from(["lang", "action", "params"]), ODD, max_size=3)


def fields(known: dict[str, st.SearchStrategy[Any]], *, required: tuple[str, ...] = ()) -> Any:
    """Maps in which each field is left out, right, or anything at all."""
    some = {name: good | ODD for name, good in known.items()}
    must = {name: some.pop(name) for name in required}
    return st.fixed_dictionaries(must, optional=some)


IDS = st.sampled_from(
    ["0af7651916cd43dd8448eb211c80319c", "short", "", "é", "tab\t", "end\n", "x" * 64, "x" * 65]
)
HOPS = fields(
    {"node": WORDS, "at": NUMBERS, "took_ms": NUMBERS, "forwarded_to": WORDS, "status": WORDS, "more": ODD}
)
TRACES = fields(
    {
        "trace_id": IDS,
        "span_id": IDS,
        "started_at": NUMBERS,
        "hops": st.lists(HOPS | ODD, max_size=2) | st.just([{"node": "n", "at": 1}] * 65),
    }
)
BLOBS = fields(
    {
        "bucket": st.sampled_from(["reach_blobs_1h", "a.b", "b\n", "*", "x" * 65]),
        "name": st.sampled_from(["n", "x" * 128, "x" * 129]),
        "size": NUMBERS,
    }
)
ENVELOPES = fields(
    {
        "version": st.just(1),
        "message_id": st.just("m1"),
        "payload": MAPS,
        "type": st.sampled_from(["request", "stream", "task", "event"]),
        "priority": st.sampled_from(["core", "normal", "offline"]),
        "attempt": NUMBERS,
        "timeout_ms": NUMBERS,
        "expires_at": NUMBERS,
        "frames": st.booleans(),
        **dict.fromkeys(
            ("source", "target", "session_id", "tenant", "capability", "idempotency_key", "task_id"), WORDS
        ),
        **dict.fromkeys(("require", "prefer", "trigger"), MAPS),
        "trace": TRACES,
        "blob": BLOBS,
        "something_new": ODD,
    },
    required=("version", "message_id", "payload"),
)


def one_change() -> st.SearchStrategy[dict[str, Any]]:
    """A good envelope with one field replaced: most of these are right but for one thing."""
    full = envelopes()["envelope-full"].to_map()
    changes = st.tuples(st.sampled_from(sorted(full)), ENVELOPES)
    return changes.map(lambda change: {**full, change[0]: change[1].get(change[0], full[change[0]])})


def verdict(m: dict[str, Any]) -> Envelope | None:
    try:
        return Envelope.from_map(m)
    except SchemaInvalid:
        return None


@given(m=ENVELOPES | one_change())
@settings(max_examples=600, deadline=None)
def test_the_decoder_and_the_published_schema_agree(m: dict[str, Any]) -> None:
    """Whatever the published schema allows is decoded, and whatever it forbids is refused."""
    assert VALID.is_valid(m) == (verdict(m) is not None)


@given(m=ENVELOPES | one_change())
@settings(max_examples=300, deadline=None)
def test_the_decoder_and_pydantic_build_the_same_envelope(m: dict[str, Any]) -> None:
    """What is accepted is the object that pydantic makes of the same map by the dataclass alone."""
    envelope = verdict(m)
    if envelope is None:
        return
    if {"action", "params"} == m["payload"].keys():
        m = {**m, "payload": envelope.payload}
    if envelope.trace is not None:  # Missing ids are made up: each side makes its own.
        given_ids = {"trace_id": envelope.trace.trace_id, "span_id": envelope.trace.span_id}
        m = {**m, "trace": {**m["trace"], **given_ids}}
    assert MODEL.validate_python(m) == MODEL.validate_python(envelope.to_map())


@given(m=ENVELOPES | one_change())
@settings(max_examples=600, deadline=None)
def test_the_quick_reader_and_the_decoder_agree(m: dict[str, Any]) -> None:
    """What msgspec reads whole is what reading by hand gives, and it takes nothing that would be refused there."""
    packed = msgpack.packb(m)
    if (expected := verdict(m)) is None:
        with pytest.raises(SchemaInvalid):
            Envelope.read(packed)
        return
    found = Envelope.read(packed)
    if expected.trace is not None and found.trace is not None:  # Missing ids are made up, each time anew.
        expected.trace.trace_id = m["trace"].get("trace_id") or found.trace.trace_id
        expected.trace.span_id = m["trace"].get("span_id") or found.trace.span_id
    assert repr(expected.to_map()) == repr(found.to_map())


@given(m=ENVELOPES)
@settings(max_examples=200, deadline=None)
def test_an_accepted_envelope_is_sent_on_as_one(m: dict[str, Any]) -> None:
    """What was decoded encodes to what the schema allows, and decodes to the same again."""
    envelope = verdict(m)
    if envelope is None or "params" in envelope.payload:
        return  # What was unwrapped once would be unwrapped again.
    assert VALID.is_valid(envelope.to_map())
    # As text, because NaN in a payload is not equal to itself.
    assert repr(envelope) == repr(Envelope.from_map(envelope.to_map()))


@pytest.mark.parametrize("name", envelopes())
def test_an_envelope_survives_packing(name: str) -> None:
    """Packed by hand and read by hand, every field is as it was."""
    envelope = envelopes()[name]
    assert envelope == Envelope.from_map(codec.unpack(envelope.pack()))


def test_what_has_its_default_is_left_out() -> None:
    """The smallest envelope has five fields on the wire."""
    assert {"version", "message_id", "type", "attempt", "payload"} == Envelope().to_map().keys()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "version zero": ({"version": 0}, "version is a whole number from 1, not 0"),
    "version text": ({"version": "1"}, "version is a whole number from 1, not the text '1'"),
    "newer": ({"version": 9}, f"version 9 of the envelope is newer than this agent understands ({VERSION})"),
    "payload list": ({"payload": []}, "payload is a map, not a list"),
    "empty id": ({"message_id": ""}, "message_id is a text, not the text ''"),
    "unhashable type": ({"type": []}, "type is request, stream, task or event, not a list"),
    "priority": ({"priority": "high"}, "priority is core, normal or offline, not the text 'high'"),
    "frames": ({"frames": 1}, "frames is true or false, not 1"),
    "attempt": ({"attempt": 0}, "attempt is a whole number from 1, not 0"),
    "timeout": ({"timeout_ms": "5s"}, "timeout_ms is a whole number from 0, not the text '5s'"),
    "bool is no number": ({"timeout_ms": True}, "timeout_ms is a whole number from 0, not True"),
    "tenant": ({"tenant": 7}, "tenant is a text, not 7"),
    "require": ({"require": "zh"}, "require is a map, not the text 'zh'"),
    "blob": ({"blob": {"bucket": "$KV.x", "name": "n", "size": 1}}, "blob is a map {bucket, name, size}"),
    "trace": ({"trace": "abc"}, "trace is a map {trace_id, span_id, hops, started_at}, not the text 'abc'"),
    "hops": ({"trace": {"hops": [1]}}, "trace: a hop is a map"),
    "header injection": ({"trace": {"trace_id": "a\r\nX: 1"}}, "trace: trace_id and span_id are printable"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_field_is_named_with_what_would_be_right(kind: str) -> None:
    """A refusal names the field, what it should be, and what came."""
    change, message = WRONG[kind]
    with pytest.raises(SchemaInvalid) as caught:
        Envelope.from_map({"version": 1, "message_id": "m", "payload": {}, **change})
    assert message in caught.value.message


def test_unknown_fields_of_the_same_version_are_ignored() -> None:
    """A newer peer may send more."""
    assert Envelope(message_id="m") == Envelope.from_map(
        {"version": 1, "message_id": "m", "payload": {}, "colour": "red"}
    )


@pytest.mark.parametrize("missing", ["version", "message_id", "payload"])
def test_a_body_without_one_of_three_fields_is_bare_parameters(missing: str) -> None:
    """Only a body with version, message_id and payload is an envelope."""
    whole: dict[str, Any] = {"version": 1, "message_id": "m", "payload": {}}
    assert is_envelope(whole)
    assert not is_envelope({key: value for key, value in whole.items() if key != missing})


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({"action": "a", "params": {"x": 1}}, {"x": 1}),
        ({"action": "a", "params": 1}, {"action": "a", "params": 1}),
        ({"action": "a", "params": {}, "x": 1}, {"action": "a", "params": {}, "x": 1}),
        ({"params": {"x": 1}}, {"params": {"x": 1}}),
    ],
)
def test_action_and_params_alone_are_unwrapped(payload: dict[str, Any], expected: dict[str, Any]) -> None:
    """A payload of exactly `{action, params}` stands for its params; anything else is the parameters."""
    assert expected == Envelope.from_map({"version": 1, "message_id": "m", "payload": payload}).payload


def test_a_leaf_that_cannot_cross_is_named_when_packing() -> None:
    """CALL-8: `pack` refuses by path inside the payload."""
    with pytest.raises(NotOnTheWire) as caught:
        Envelope(payload={"lines": [{"n": 2**70}]}).pack()
    assert "lines[0].n" == caught.value.path


def test_a_trace_makes_the_ids_it_was_not_given() -> None:
    """A trace without ids gets W3C-sized ones, and its `traceparent` is one header line."""
    trace = Trace.from_map({"hops": [{"node": "a", "at": 1}]})
    assert [Hop("a", 1)] == trace.hops
    assert (32, 16) == (len(trace.trace_id), len(trace.span_id))
    assert f"00-{trace.trace_id}-{trace.span_id}-01" == trace.traceparent()


@pytest.mark.parametrize("bucket", ["a.b", "*", ">", "", "x" * 65, "a b", "b\n", 7])
def test_a_blob_reference_cannot_reach_outside_its_bucket(bucket: Any) -> None:
    """A bucket becomes part of a subject, so it is one token or refused."""
    assert not is_blob({"bucket": bucket, "name": "n", "size": 1})
    assert is_blob({"bucket": "reach_blobs_1h", "name": "n", "size": 1})
