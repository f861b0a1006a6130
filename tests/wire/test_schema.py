"""The published contract: made from the models, committed, and never changed by accident."""

import json
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from jsonschema import Draft202012Validator

from reach.errors import NameRefused
from reach.wire import asyncapi, compat, schema
from reach.wire.glossary import MEANING
from tests.wire.contract import SCHEMAS, assert_matches_contract, channel_of
from tests.wire.specimens import specimens

BASELINE = SCHEMAS / "baseline"
ALL = schema.json_schemas()
SPECIMENS = specimens()
Sides = Literal["input", "output"]


def test_the_committed_contract_is_what_the_models_say(tmp_path: Path) -> None:
    """`schemas/` does not drift: exporting gives the committed bytes (run `reach schema export` if it fails)."""
    written = schema.export(tmp_path / "new" / "folder")
    drifted = [
        path.name
        for path in written
        if not (SCHEMAS / path.name).is_file() or (SCHEMAS / path.name).read_bytes() != path.read_bytes()
    ]
    assert [] == drifted
    assert {path.name for path in written} == {path.name for path in SCHEMAS.glob("*.json")}


def test_exporting_twice_writes_the_same_bytes(tmp_path: Path) -> None:
    """The same models give the same bytes: sorted keys, one newline at the end."""
    first = [path.read_bytes() for path in schema.export(tmp_path)]
    assert first == [path.read_bytes() for path in schema.export(tmp_path)]
    assert all(text.endswith(b"}\n") for text in first)
    assert first[0] == schema.rendered(json.loads(first[0]))


@pytest.mark.parametrize("name", ALL)
def test_a_schema_is_one_of_json_schema_2020_12(name: str) -> None:
    """Each schema is right by its own dialect, is addressed without a host, and holds all it refers to."""
    one = ALL[name]
    Draft202012Validator.check_schema(one)
    assert f"schema://reach/{name}@1" == one["$id"]
    assert {f"#/$defs/{part}" for part in one.get("$defs", {})} >= set(schema.references(one))


@pytest.mark.parametrize("name", ALL)
def test_a_published_message_may_follow_the_baseline(name: str) -> None:
    """A change that breaks whoever follows the last release is refused, whoever is upgraded first."""
    baseline = json.loads((BASELINE / f"{name}.json").read_bytes())
    assert [] == compat.both_ways(baseline, ALL[name])


def test_no_published_message_is_withdrawn() -> None:
    """Whatever was released once is still published."""
    assert {path.stem for path in BASELINE.glob("*.json")} <= ALL.keys()


def test_the_baseline_catches_a_breaking_change() -> None:
    """The comparison above is awake: a promised field taken away is found in the real contract."""
    changed = json.loads((BASELINE / "reply.json").read_bytes())
    changed["required"].remove("instance")
    changed["properties"]["attempt"]["minimum"] = 2
    assert [
        "attempt: minimum was tightened from 1 to 2",
        "instance: the field is no longer promised",
    ] == compat.both_ways(ALL["reply"], changed)


def objects(node: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """Every property of every object below a node, with the title of its object."""
    found = []
    if isinstance(node, dict):
        for field, one in node.get("properties", {}).items() if "title" in node else ():
            found.append((node["title"], field, one))
        for item in node.values():
            found += objects(item)
    elif isinstance(node, list):
        for item in node:
            found += objects(item)
    return found


@pytest.mark.parametrize("name", ALL)
def test_every_published_field_is_explained(name: str) -> None:
    """A reader of the contract finds the meaning of each field and each object there."""
    assert [] == [f"{title}.{field}" for title, field, one in objects(ALL[name]) if "description" not in one]
    parts = [ALL[name], *ALL[name].get("$defs", {}).values()]
    assert [] == [part["title"] for part in parts if not part.get("description")]


def test_the_glossary_explains_nothing_that_is_not_there() -> None:
    """No meaning is kept for a field that is gone."""
    fields = {(title, field) for one in ALL.values() for title, field, _ in objects(one)}
    known = {field for _, field in fields} | {f"{title}.{field}" for title, field in fields}
    assert set() == MEANING.keys() - known


@pytest.mark.parametrize("name", SPECIMENS)
def test_a_specimen_is_what_its_schema_says(name: str) -> None:
    """What our code writes is what the contract promises."""
    specimen = SPECIMENS[name]
    validator = Draft202012Validator(ALL[specimen.message])
    assert [] == [error.message for error in validator.iter_errors(specimen.body)]


@pytest.mark.parametrize("form", ["bin", "json"])
@pytest.mark.parametrize("name", [name for name, one in SPECIMENS.items() if one.subject])
def test_a_specimen_is_recognised_by_its_subject(name: str, form: str) -> None:
    """The AsyncAPI document leads from a subject and bytes to the message, in both forms."""
    golden = (Path(__file__).parent / "golden" / f"{name}.{form}").read_bytes()
    assert SPECIMENS[name].message == assert_matches_contract(SPECIMENS[name].subject, golden)


@pytest.mark.parametrize(
    ("subject", "data", "why"),
    [
        ("cap.a", b'{"version": 1, "message_id": "m", "payload": 7}', "not a envelope"),
        ("reply.c1.t1", b'{"ok": false}', "not a reply"),
        ("reply.c1.t1", b'{"stream_id": "s", "seq": 1, "data": 1, "end": {}}', "not a frame"),
        ("ctl.i-1.cancel", b"{}", "'message_id' is a required property"),
        ("ctl.i-1.dance", b"{}", "is not a subject of the contract"),
        ("cap.a", b"\x91\x01", "a body is a map"),
        ("$SRV.INFO.svc", b"{}", "not a nothing"),
    ],
)
def test_a_message_off_the_contract_is_caught(subject: str, data: bytes, why: str) -> None:
    """The check that bus tests use fails for what the contract does not allow."""
    with pytest.raises(AssertionError, match=why):
        assert_matches_contract(subject, data)


def test_every_request_subject_belongs_to_a_channel() -> None:
    """The subjects that our code builds are channels of the document; what is NATS's own is not."""
    expected = {
        "cap.a.b-c": "request",
        "t.north.cap.a.b": "tenantRequest",
        "all.a.b": "broadcast",
        "lane.p-1.a.b": "lane",
        "inst.p-1-abcd.a.b": "directed",
        "ctl.p-1-abcd.ping": "ping",
        "reply.c1.t1": "inbox",
        "_INBOX.abc.1": "answer",
        "reach.gone.p-1.5": "gone",
        "reach.suspect.a.b": "suspect",
        "$SRV.PING": "servicePing",
        "$SRV.STATS.svc.id1": "serviceStatsOne",
        "$JS.API.INFO": None,
        "$SYS.ACCOUNT.A.DISCONNECT": None,
    }
    assert expected == {subject: channel_of(subject) for subject in expected}


def test_every_operation_uses_a_channel_and_answers_that_there_are() -> None:
    """The tables behind the document fit together."""
    assert {one.channel for one in asyncapi.OPERATIONS.values()} <= asyncapi.CHANNELS.keys()
    answers = {answer for one in asyncapi.OPERATIONS.values() for answer in one.answers}
    assert answers <= set(asyncapi.CHANNELS["answer"].messages)
    said = {message for channel in asyncapi.CHANNELS.values() for message in channel.messages}
    assert said <= schema.MESSAGES.keys() | {"parameters", "nothing"}


@pytest.mark.parametrize("version", ["1", "1.2", "10.0.3"])
def test_a_capability_schema_has_a_path_and_an_address(version: str) -> None:
    """Capability schemas lie at, and are addressed by, name, side and a version of their own."""
    path = schema.capability_schema_path("invoice.extract", "input", version)
    assert f"capabilities/invoice.extract/input@{version}.json" == str(path)
    assert f"schema://invoice.extract/output@{version}" == schema.capability_schema_id(
        "invoice.extract", "output", version
    )


@pytest.mark.parametrize(
    ("name", "side", "version", "error"),
    [
        ("../secrets", "input", "1", NameRefused),
        ("invoice.extract", "both", "1", ValueError),
        ("invoice.extract", "input", "1/..", ValueError),
        ("invoice.extract", "input", "v1", ValueError),
        ("invoice.extract", "input", "01", ValueError),
    ],
)
def test_a_capability_schema_never_lies_elsewhere(
    name: str, side: str, version: str, error: type[Exception]
) -> None:
    """A name, side or version that could lead out of the folder is refused."""
    with pytest.raises(error):
        schema.capability_schema_path(name, cast("Sides", side), version)


def test_the_folder_of_a_taken_path_is_told(tmp_path: Path) -> None:
    """A folder that cannot be made is an OSError, not a half-written contract."""
    (tmp_path / "file").write_text("here")
    with pytest.raises(OSError, match="file"):
        schema.export(tmp_path / "file")
