"""What crosses the wire, and what is refused before it is sent (CALL-8, case 19)."""

import dataclasses
import json
import math
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import PurePosixPath
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from reach.errors import NotOnTheWire, SchemaInvalid
from reach.wire import codec

PACKERS = {"msgpack": codec.pack, "json": codec.pack_json}
both_forms = pytest.mark.parametrize("form", PACKERS)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INTEGERS = st.integers(-(2**63), 2**64 - 1)
LEAVES = st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | TEXT
ANY_LEAVES = LEAVES | st.binary(max_size=20)
KEYS = TEXT.filter(lambda key: key != "$bytes")


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    inner = st.recursive(
        leaves,
        lambda some: st.lists(some, max_size=4) | st.dictionaries(KEYS, some, max_size=4),
        max_leaves=12,
    )
    return st.dictionaries(KEYS, inner, max_size=5)


def there_and_back(form: str, body: dict[str, Any]) -> dict[str, Any]:
    return codec.unpack(PACKERS[form](body))


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Mixed(Enum):
    PAIR = "pair"


class Line(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    price: Decimal
    net_total: Decimal = Field(alias="netTotal")


class Everything(BaseModel):
    raw: bytes
    when: datetime
    day: date
    clock: time
    took: timedelta
    key: uuid.UUID
    total: Decimal
    words: set[str]
    frozen: frozenset[int]
    pair: tuple[int, str]
    colour: Colour
    level: Level
    mixed: Mixed
    where: PurePosixPath
    lines: list[Line]


@dataclasses.dataclass
class Point:
    x: int
    seen: date


def zones() -> st.SearchStrategy[timezone]:
    return st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))


EVERYTHING = st.builds(
    Everything,
    raw=st.binary(max_size=30),
    when=st.datetimes(timezones=zones()),
    day=st.dates(),
    clock=st.times(),
    took=st.timedeltas(timedelta(days=-10_000), timedelta(days=10_000)),
    key=st.uuids(),
    total=st.decimals(allow_nan=False, allow_infinity=False),
    words=st.sets(TEXT, max_size=4),
    frozen=st.frozensets(INTEGERS, max_size=4),
    pair=st.tuples(INTEGERS, TEXT),
    colour=st.sampled_from(Colour),
    level=st.sampled_from(Level),
    mixed=st.sampled_from(Mixed),
    where=st.just(PurePosixPath("in/R-17.pdf")),
    lines=st.lists(st.builds(Line, price=st.decimals(0, 10), netTotal=st.decimals(0, 10)), max_size=3),
)

# ------------------------------------------------------------------------------------------------- round trips


@both_forms
@given(body=trees(ANY_LEAVES))
@settings(max_examples=150, deadline=None)
def test_plain_values_come_back_as_they_went(form: str, body: dict[str, Any]) -> None:
    """CALL-8: nil, booleans, 64-bit integers, floats, text, bytes, lists and maps round-trip in both forms."""
    assert body == there_and_back(form, body)


@both_forms
@given(sent=EVERYTHING)
@settings(max_examples=100, deadline=None)
def test_every_documented_type_comes_back_through_the_receivers_model(form: str, sent: Everything) -> None:
    """CALL-8: each documented form is turned back by the receiver's own model."""
    arrived = there_and_back(form, {"params": sent})
    assert sent == Everything.model_validate(arrived["params"])


@both_forms
def test_the_documented_forms_are_these(form: str) -> None:
    """CALL-8: the form of each type is the one that the codec's page documents."""
    sent = {
        "when": datetime(2025, 1, 31, 12, 30, tzinfo=UTC),
        "day": date(2025, 1, 31),
        "clock": time(12, 30),
        "took": timedelta(minutes=90),
        "key": uuid.UUID("12345678-1234-5678-1234-567812345678"),
        "total": Decimal("119.00"),
        "words": {"b", "a"},
        "odd": frozenset({1}),
        "pair": (1, "x"),
        "colour": Colour.RED,
        "level": Level.HIGH,
        "mixed": Mixed.PAIR,
        "where": PurePosixPath("in/R-17.pdf"),
        "line": Line(price=Decimal("1.50"), net_total=Decimal("3.00")),
        "point": Point(x=1, seen=date(2025, 1, 31)),
        "view": memoryview(b"ab"),
        "array": bytearray(b"ab"),
    }
    expected = {
        "when": "2025-01-31T12:30:00+00:00",
        "day": "2025-01-31",
        "clock": "12:30:00",
        "took": "PT1H30M",
        "key": "12345678-1234-5678-1234-567812345678",
        "total": "119.00",
        "words": ["a", "b"],
        "odd": [1],
        "pair": [1, "x"],
        "colour": "red",
        "level": 3,
        "mixed": "pair",
        "where": "in/R-17.pdf",
        "line": {"price": "1.50", "netTotal": "3.00"},
        "point": {"x": 1, "seen": "2025-01-31"},
        "view": b"ab",
        "array": b"ab",
    }
    assert expected == there_and_back(form, sent)


def test_bytes_are_named_in_json_and_bin_in_msgpack() -> None:
    """CALL-8: bytes are bytes, not text, in both forms (case 19)."""
    assert {"raw": {"$bytes": "AP8="}} == json.loads(codec.pack_json({"raw": b"\x00\xff"}))
    assert b"\x81\xa3raw\xc4\x02\x00\xff" == codec.pack({"raw": b"\x00\xff"})


def test_a_timestamp_of_msgpack_is_an_aware_datetime() -> None:
    """The one extension type that is accepted is msgpack's own timestamp."""
    when = datetime(2025, 1, 31, 12, 30, tzinfo=UTC)
    data = msgpack.packb({"when": msgpack.Timestamp.from_datetime(when)})
    assert {"when": when} == codec.unpack(data)


# ---------------------------------------------------------------------------------------------------- refusals


class Opaque:
    pass


def nested(depth: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return {"deep": value}


REFUSED: dict[str, tuple[Any, str, str]] = {
    "integer past 64 bits": ({"lines": [{"n": 2**64}]}, "lines[0].n", "more than 64 bits"),
    "negative integer past 64 bits": ({"n": -(2**63) - 1}, "n", "more than 64 bits"),
    "lone surrogate": ({"text": "half \ud800"}, "text", "lone surrogate at character 5"),
    "lone surrogate in a key": ({"a": {"\ud800": 1}}, "a['\\ud800']", "lone surrogate"),
    "object": ({"a": {"b": [Opaque()]}}, "a.b[0]", "a Opaque has no form on the wire"),
    "function": ({"f": nested}, "f", "has no form on the wire"),
    "integer key": ({"a": {1: "x"}}, "a[1]", "a map key is text on the wire, not int"),
    "bytes key": ({b"k": 1}, "[b'k']", "not bytes"),
    "naive datetime": ({"when": datetime(2025, 1, 31, 12, 30)}, "when", "needs a time zone"),  # noqa: DTZ001
    "too deep": (
        nested(codec.MAX_DEPTH + 1),
        "deep" + "[0]" * codec.MAX_DEPTH,
        "nested deeper than 64 levels",
    ),
    "in a set": ({"s": {2**70}}, "s[0]", "more than 64 bits"),
    "in a model": ({"m": [Point(x=2**70, seen=date(2025, 1, 1))]}, "m[0].x", "more than 64 bits"),
}


@both_forms
@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_cross_is_refused_by_name_and_path(form: str, kind: str) -> None:
    """CALL-8: a value that cannot cross is refused before sending, with its path and what it is."""
    value, path, why = REFUSED[kind]
    with pytest.raises(NotOnTheWire) as caught:
        PACKERS[form](value)
    assert path == caught.value.path
    assert why in str(caught.value)
    assert path in str(caught.value)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_are_refused_there_alone(number: float) -> None:
    """CALL-8: NaN and infinity cross in msgpack, and are refused by path where JSON is asked."""
    assert repr(number) == repr(codec.unpack(codec.pack({"a": [number]}))["a"][0])
    with pytest.raises(NotOnTheWire, match="has no form in JSON") as caught:
        codec.pack_json({"a": [number]})
    assert "a[0]" == caught.value.path


def test_a_map_that_looks_like_bytes_is_refused_in_json() -> None:
    """CALL-8: what would come back as bytes although it was a map is not sent as JSON."""
    with pytest.raises(NotOnTheWire, match="what bytes look like in JSON") as caught:
        codec.pack_json({"a": {"$bytes": "QUJD"}})
    assert "a" == caught.value.path
    assert {"a": {"$bytes": "QUJD"}} == codec.unpack(codec.pack({"a": {"$bytes": "QUJD"}}))


@both_forms
def test_a_value_that_holds_itself_is_refused(form: str) -> None:
    """CALL-8: an endless value ends in a refusal, not in a crash of the encoder."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(NotOnTheWire, match="nested deeper"):
        PACKERS[form]({"a": endless})


@both_forms
def test_the_deepest_that_is_sent_is_also_read(form: str) -> None:
    """The bound on nesting is the same on both sides."""
    body = nested(codec.MAX_DEPTH)
    assert body == there_and_back(form, body)


@pytest.mark.parametrize("key", [1, b"k", None])
def test_the_form_of_a_value_is_made_before_it_is_packed(key: Any) -> None:
    """`wire_form` refuses the keys that msgpack would take, and gives what is plain as the object that it was."""
    with pytest.raises(NotOnTheWire, match="a map key is text"):
        codec.wire_form({"a": {key: 1}})
    body = {"a": {"k": [1, "x", None, b"y"]}}
    assert codec.wire_form(body) is body
    assert {"a": "2025-01-01"} == codec.wire_form({"a": date(2025, 1, 1)})


# ----------------------------------------------------------------------------------------------------- arrivals

ARRIVED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "the body is empty"),
    "neither form": (b"\xc1", "neither JSON (first byte '{') nor msgpack"),
    "two values": (b"\x80\x80", "neither JSON"),
    "cut short": (codec.pack({"a": "long text"})[:-2], "neither JSON"),
    "a list": (msgpack.packb([1]), "a map of parameters, not a list"),
    "a number": (b"\x07", "not a number"),
    "null": (b"\xc0", "not a null"),
    "a byte string": (b"\xc4\x01a", "not a byte string"),
    "an integer key": (b"\x81\x01\x01", "a key that is not text"),
    "a key of bytes": (b"\x81\xc4\x01k\x01", "a key that is not text"),
    "an extension": (msgpack.packb({"a": msgpack.ExtType(5, b"x")}), "extension type 5 is not accepted"),
    "text that is not UTF-8": (b"\x81\xa1a\xa1\xff", "not valid UTF-8"),
    "msgpack too deep": (b"\x81\xa1a" + b"\x91" * 65 + b"\x01", "nested deeper than 64"),
    "msgpack far too deep": (b"\x81\xa1a" + b"\x91" * 100_000 + b"\x01", "neither JSON"),
    "a huge promised list": (b"\x81\xa1a\xdd\xff\xff\xff\xff", "neither JSON"),
    "malformed JSON": (b'{"a": 1,\n "b": }', "line 2, column 7"),
    "JSON not UTF-8": (b'{"a": "\xff"}', "not valid UTF-8 at byte 7"),
    "NaN": (b'{"a": NaN}', "NaN has no form in JSON"),
    "infinity": (b'{"a": 1e999}', "a: inf has no form in JSON"),
    "JSON integer past 64 bits": (b'{"a": [18446744073709551616]}', "a[0]: an integer of more than 64 bits"),
    "endless digits": (b'{"a": ' + b"9" * 5000 + b"}", "cannot be read"),
    "half a surrogate pair": (b'{"a": "\\ud800"}', "a: a lone surrogate"),
    "JSON too deep": (b'{"a": ' + b"[" * 65 + b"]" * 65 + b"}", "nested deeper than 64"),
    "JSON far too deep": (b'{"a":' * 100_000, "nested deeper than 64"),
    "bytes that are not base64": (b'{"a": {"$bytes": "?"}}', "not base64"),
    "bytes at the top": (b'{"$bytes": "QUJD"}', "not a byte string"),
}


@pytest.mark.parametrize("kind", ARRIVED)
def test_a_body_that_is_none_is_refused_with_what_is_wrong(kind: str) -> None:
    """What arrives and cannot be read is `SCHEMA_INVALID`, and the message says where or why."""
    data, why = ARRIVED[kind]
    with pytest.raises(SchemaInvalid) as caught:
        codec.unpack(data)
    assert why in caught.value.message


def test_a_body_over_the_cap_is_refused_with_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cap on decoding names the size that came and the most that is read."""
    monkeypatch.setattr(codec, "MAX_BYTES", 10)
    with pytest.raises(SchemaInvalid, match="the body has 12 bytes; 10 is the most"):
        codec.unpack(codec.pack({"a": "123456789"})[:12])


@given(body=trees(ANY_LEAVES), junk=st.binary(max_size=40))
@settings(max_examples=100, deadline=None)
def test_a_key_that_is_not_text_is_found_wherever_it_is(body: dict[str, Any], junk: bytes) -> None:
    """Whatever text or bytes a body holds beside it, a key of bytes and a nesting too deep are refused."""
    whole = {**body, "j": junk, "t": junk.decode("latin-1")}
    assert whole == codec.unpack(msgpack.packb(whole))
    with pytest.raises(SchemaInvalid):
        codec.unpack(msgpack.packb({**whole, "k": {b"bytes": 1}}))
    with pytest.raises(SchemaInvalid):
        codec.unpack(msgpack.packb({**whole, **nested(codec.MAX_DEPTH + 1)}))


# ------------------------------------------------------------------------------------------- no message mixes


def test_a_value_whose_form_packs_something_does_not_disturb_the_message() -> None:
    """A packer is never shared: a model that packs while it is packed leaves both messages whole."""

    class Digesting(BaseModel):
        size: int = 0

        def model_dump(self, **options: Any) -> dict[str, Any]:
            return {"size": len(codec.pack({"inner": 1}))}

    assert {"a": {"size": 8}, "b": 2} == codec.unpack(codec.pack({"a": Digesting(), "b": 2}))


def test_threads_pack_at_once_without_mixing() -> None:
    """Several event loops in several threads may pack at the same time."""
    bodies = [{"n": n, "when": [datetime(2025, 1, 1, tzinfo=UTC)] * 50} for n in range(4)]
    expected = [codec.pack(body) for body in bodies]
    wrong: list[int] = []

    def work(n: int) -> None:
        wrong.extend(n for _ in range(200) if codec.pack(bodies[n]) != expected[n])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == wrong


@pytest.mark.parametrize("pack", PACKERS.values())
def test_is_json_tells_by_the_first_byte(pack: Callable[[dict[str, Any]], bytes]) -> None:
    """The form is told by the first byte alone, so that an answer can be in kind."""
    assert (pack is codec.pack_json) == codec.is_json(pack({"a": 1}))
    assert not codec.is_json(b"")
