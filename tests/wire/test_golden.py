"""The bytes themselves: what was on the wire yesterday is read today, and what is written has not moved."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgpack
import pytest

from reach.wire import codec
from reach.wire.envelope import Envelope
from reach.wire.frame import Frame
from reach.wire.reply import Reply
from tests.wire import specimens as made

SPECIMENS = made.specimens()
READERS: dict[str, tuple[Callable[[dict[str, Any]], object], Mapping[str, object]]] = {
    "envelope": (Envelope.from_map, made.envelopes()),
    "reply": (Reply.from_map, made.replies()),
    "frame": (Frame.from_map, made.frames()),
}
HOT = [(name, form) for name, one in SPECIMENS.items() if one.message in READERS for form in ("bin", "json")]


def golden(name: str, form: str) -> bytes:
    return (made.GOLDEN / f"{name}.{form}").read_bytes()


def test_golden_files_and_specimens_are_the_same_set() -> None:
    """No golden file is left behind, and no specimen goes unwritten."""
    expected = {f"{name}.{form}" for name in SPECIMENS for form in ("bin", "json")}
    assert expected == {path.name for path in made.GOLDEN.iterdir()}


@pytest.mark.parametrize("name", SPECIMENS)
def test_a_message_is_written_as_the_golden_msgpack_bytes(name: str) -> None:
    """Encoding a specimen gives the committed msgpack bytes."""
    assert golden(name, "bin") == codec.pack(SPECIMENS[name].body)


@pytest.mark.parametrize("name", SPECIMENS)
def test_a_message_is_written_as_the_golden_json_bytes(name: str) -> None:
    """Encoding a specimen gives the committed JSON bytes."""
    assert golden(name, "json") == codec.pack_json(SPECIMENS[name].body)


@pytest.mark.parametrize("form", ["bin", "json"])
@pytest.mark.parametrize("name", SPECIMENS)
def test_the_golden_bytes_are_read_as_the_message(name: str, form: str) -> None:
    """Decoding the committed bytes, of either form, gives the specimen."""
    assert SPECIMENS[name].body == codec.unpack(golden(name, form))


@pytest.mark.parametrize("name", SPECIMENS)
def test_the_golden_bytes_are_plain_msgpack_and_json(name: str) -> None:
    """The plain libraries of any language read them: no trick of ours is needed."""
    packed = msgpack.unpackb(golden(name, "bin"))
    text = json.dumps(json.loads(golden(name, "json")))
    assert SPECIMENS[name].body == packed
    assert ("$bytes" in text) == any(type(value) is bytes for value in packed.get("payload", {}).values())


@pytest.mark.parametrize(("name", "form"), HOT)
def test_the_golden_bytes_become_the_object(name: str, form: str) -> None:
    """The hand-written decoders rebuild envelope, reply and frame whole."""
    read, objects = READERS[SPECIMENS[name].message]
    assert objects[name] == read(codec.unpack(golden(name, form)))
