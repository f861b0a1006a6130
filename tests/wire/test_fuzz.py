"""Whatever bytes arrive, reading them ends in a message or in one of two refusals: no crash, no hang.

Two sources: Hypothesis, which builds bodies that are nearly right, and plain mutation of good messages, which
is quick enough for hundreds of thousands. `make soak` runs a million.
"""

import json
import math
import random
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.msgpack import encode

from reach.errors import NotOnTheWire, SchemaInvalid
from reach.wire import codec
from reach.wire.envelope import Envelope, is_envelope
from reach.wire.frame import Frame
from reach.wire.reply import Failure, Reply
from tests.wire.specimens import GOLDEN

MUTATED = 200_000
SOAKED = 1_000_000
DRAWN = 20_000
MAX_DRAWN_DEPTH = 4
ODD: tuple[tuple[Any, ...], ...] = (
    (None, True, False),
    (0, 1, -1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)),
    (0.0, 5.0, 0.5, -1.5, 1e300, math.inf, -math.inf, math.nan),
    ("", "m", "request", "core", "TIMEOUT", "DEADLINE", "maybe", "Zoë", "a\r\nb", "x" * 200, "$bytes"),
    (b"", b"\xff", b"bytes"),
    ("reach_blobs_1h", "a.b", "*", "0af7651916cd43dd8448eb211c80319c"),
    (1_796_000_000_000, 4900, 7),
)

GOOD = [path.read_bytes() for path in sorted(GOLDEN.iterdir())]
# Bytes that mean something: msgpack's openers and lengths, JSON's marks, limits of small integers.
TELLING = bytes(
    [*range(0x80, 0x84), *range(0x90, 0x94), *range(0xC0, 0xE0), 0x00, 0x7F, 0xFF, *b'{}[]":,\\0-e']
)

FIELDS = sorted(
    {key for data in GOOD for key in codec.unpack(data)} | {"trace_id", "span_id", "hops", "node", "bucket"}
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=6)
    | st.binary(max_size=4)
)
INNER = st.recursive(
    LEAVES,
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), some, max_size=3),
    max_leaves=6,
)
BODIES = st.dictionaries(st.sampled_from(FIELDS), INNER, max_size=8)


def read(data: bytes) -> str:
    """Read bytes as each message that a body can be; say how it ended, with anything unexpected let through."""
    read_quickly(data, Envelope)
    read_quickly(data, Reply)
    try:
        body = codec.unpack(data)
    except SchemaInvalid:
        return "no body"
    read_map(body)
    return "a body"


def read_quickly(data: bytes, message: type[Envelope] | type[Reply]) -> None:
    """Read bytes as a whole message: what msgspec takes is, field by field, what reading by hand gives."""
    try:
        found = message.read(data)
    except SchemaInvalid as refusal:
        assert refusal.message  # noqa: PT017 - a refusal without a reason is of no use
        return
    if type(found) is message or not isinstance(found, message):
        return  # Read by hand, or a frame: there is nothing to compare.
    body = known_of(data, message)
    expected = message.from_map(body)
    if isinstance(expected, Reply):  # Numbers of other languages, of which by hand none becomes a float.
        expected.latency_ms = float(expected.latency_ms)
        expected.cost = None if expected.cost is None else float(expected.cost)
    if expected.trace is not None and found.trace is not None:  # Missing ids are made up, each time anew.
        expected.trace.trace_id = body["trace"].get("trace_id") or found.trace.trace_id
        expected.trace.span_id = body["trace"].get("span_id") or found.trace.span_id
    fields = message.__struct_fields__
    assert [] == [
        (name, getattr(expected, name), getattr(found, name))
        for name in fields
        if encode(getattr(expected, name)) != encode(getattr(found, name))
    ]


def known_of(data: bytes, message: type[Envelope] | type[Reply]) -> dict[str, Any]:
    """The fields of a map that are a message's own. What msgspec skips, fields of other names, may hold anything."""
    try:
        return codec.unpack(data)
    except SchemaInvalid:
        # What is skipped, at any depth, may be no map of Python and no time: here it only has to be got past.
        reader = msgpack.Unpacker(
            unicode_errors="surrogateescape", strict_map_key=False, object_pairs_hook=pairs, timestamp=0
        )
        reader.feed(data)
        body = {}
        for _ in range(reader.read_map_header()):
            if (name := reader.unpack()) in message.__struct_fields__:
                body[name] = reader.unpack()
            else:
                reader.skip()
        return body


def pairs(items: list[tuple[Any, Any]]) -> Any:
    try:
        return dict(items)
    except TypeError:
        return items


def read_map(body: dict[str, Any]) -> None:
    """Read a decoded map as an envelope, a reply, a failure and a frame, whether it says so or not."""
    Reply.from_map(body)
    Failure.from_map(body)
    if is_envelope(body):
        try:
            Envelope.from_map(body)
        except SchemaInvalid as refusal:
            assert refusal.message  # noqa: PT017 - a refusal without a reason is of no use
    try:
        Frame.from_map(body).failure()
    except ValueError:
        return


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Damage a good message: bytes changed, put in, taken out, doubled, or cut off."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(6):
            case 0 if at < len(changed):
                changed[at] = chance.randrange(256)
            case 1 if at < len(changed):
                changed[at] = chance.choice(TELLING)
            case 2:
                changed[at:at] = bytes([chance.choice(TELLING)])
            case 3:
                del changed[at : at + chance.randint(1, 8)]
            case 4:
                changed[at:at] = changed[at : at + chance.randint(1, 32)]
            case _:
                del changed[at:]
        if not changed:
            break
    return bytes(changed)


def mutations(count: int, seed: int) -> dict[str, int]:
    chance = random.Random(seed)
    ended = {"no body": 0, "a body": 0}
    for _ in range(count):
        ended[read(mutate(chance.choice(GOOD), chance))] += 1
    return ended


def odd_value(chance: random.Random, depth: int) -> Any:
    """One value of any kind, small but for its number."""
    kind = chance.randrange(len(ODD) + (2 if depth < MAX_DRAWN_DEPTH else 0))
    if kind < len(ODD):
        return chance.choice(ODD[kind])
    if kind == len(ODD):
        return [odd_value(chance, depth + 1) for _ in range(chance.randrange(3))]
    return odd_map(chance, depth + 1)


def odd_map(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    return {chance.choice(FIELDS): odd_value(chance, depth) for _ in range(chance.randrange(7))}


def read_in_both_forms(body: dict[str, Any]) -> None:
    whole = {"version": 1, "message_id": "m", "payload": {}, **body}
    for form in (whole, body, {"ok": True, **body}, {**body, "ok": True}):
        read(msgpack.packb(form))
    try:
        data = codec.pack_json(whole)
    except NotOnTheWire:
        return
    read(data)


def test_nearly_right_bodies_are_read_or_refused() -> None:
    """20 000 maps of real field names and odd values, in both forms: a message, or one of the two refusals."""
    chance = random.Random(2)
    for _ in range(DRAWN):
        read_in_both_forms(odd_map(chance))


@given(body=BODIES)
@settings(max_examples=400, deadline=None)
def test_what_hypothesis_finds_odd_is_read_or_refused(body: dict[str, Any]) -> None:
    """The same with Hypothesis choosing, which remembers and shrinks what it finds."""
    read_in_both_forms(body)


@pytest.mark.soak
@given(body=BODIES)
@settings(max_examples=20_000, deadline=None)
def test_what_hypothesis_finds_odd_in_the_long_run(body: dict[str, Any]) -> None:
    """The same, twenty times as long."""
    read_in_both_forms(body)


@given(
    text=st.text(st.sampled_from('{}[]":,0123456789eE+-.\\ud8nulltrefas$b '), max_size=60),
    tail=st.binary(max_size=4),
)
@settings(max_examples=1000, deadline=None)
def test_texts_that_look_like_json_are_read_or_refused(text: str, tail: bytes) -> None:
    """What begins like JSON and is none is refused, whatever follows."""
    read(b"{" + text.encode() + tail)
    read(b'{"a":' + text.encode() + b"}")


def test_damaged_messages_are_read_or_refused() -> None:
    """200 000 damaged messages: each is still a body, or refused; many are each."""
    ended = mutations(MUTATED, seed=1)
    assert sum(ended.values()) == MUTATED
    assert min(ended.values()) > MUTATED // 20


@pytest.mark.soak
def test_a_million_damaged_messages_are_read_or_refused() -> None:
    """The same, a million times, from another beginning each run."""
    assert sum(mutations(SOAKED, seed=random.SystemRandom().randrange(2**32)).values()) == SOAKED


@pytest.mark.parametrize("data", GOOD)
def test_every_beginning_of_a_good_message_is_refused_or_whole(data: bytes) -> None:
    """A message that was cut off anywhere is never taken for a shorter one."""
    whole = [size for size in range(len(data)) if read(data[:size]) == "a body"]
    assert [] == whole


def test_json_of_any_size_of_number_ends() -> None:
    """Numbers of many digits, and deep or long bodies, end at once rather than grow without bound."""
    for body in (
        '{"a": ' + "1" * 100_000 + "}",
        '{"a": 0.' + "1" * 100_000 + "}",
        '{"a": 1e' + "9" * 5_000 + "}",
    ):
        read(body.encode())
    read(json.dumps({"a": [[]] * 50_000}).encode())
    read(msgpack.packb({"a": [{}] * 50_000}))
