"""The published contract, made from the models.

`schemas/` in the repository holds what `export` writes: a JSON Schema (2020-12) for each message, the AsyncAPI
document of who says what where, and the table of failures. Other languages and other teams build on those
files, so they change on purpose only: a test fails when they drift from the models, and another when a change
would break somebody who follows them (`reach.wire.compat`).

Unknown fields are allowed everywhere (a newer peer may send more), and what is left out by default on the
wire is optional. Ids name no host: `schema://reach/envelope@1`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, make_dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, NotRequired, get_type_hints

from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields
from pydantic import TypeAdapter
from typing_extensions import TypedDict

from reach.faults import FAULTS, Reason
from reach.wire import names
from reach.wire.alert import Alert
from reach.wire.audit import AuditEntry
from reach.wire.card import Card
from reach.wire.control import Cancel, Credit, Drain, Ping, Pong
from reach.wire.envelope import VERSION, Envelope
from reach.wire.glossary import meaning
from reach.wire.idempotency import IdempotencyEntry
from reach.wire.life import Gone, Goodbye, Heartbeat, Suspicion
from reach.wire.outcomes import Outcomes
from reach.wire.record import Attempt, ReachRecord
from reach.wire.registration import (
    Applied,
    CardEntry,
    DrainInstances,
    Explain,
    ListInstances,
    MembershipOrder,
    PermitAnswer,
    PermitAsk,
    PermitOutcome,
    Register,
    RegisterAgain,
    Registered,
    Resync,
    RouteAnswer,
    SetBreaker,
    SetCanary,
    SetRoute,
    Show,
)
from reach.wire.reply import Failure, Reply
from reach.wire.route import RouteEntry
from reach.wire.service import ServiceInfo, ServicePing, ServiceStats
from reach.wire.task import TaskEvent, TaskOrder
from reach.wire.trace import Hop, Trace
from reach.wire.unknown import (
    ListUnknowns,
    Resolution,
    ResolveUnknown,
    ShowUnknown,
    UnknownAnswer,
    UnknownOutcome,
)
from reach.wire.whole import MAX_WHOLE

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
"""The JSON Schema dialect of every published schema."""

_VERSION = re.compile(r"(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*)){0,2}")


_PARTS: Final = (Hop, Trace, Failure, Attempt, Envelope, Reply)
"""Structs that other structs hold, innermost first."""


class Accepted(TypedDict):
    """Body of an `accepted` frame: which instance has the call. Cancel and credit go there."""

    instance: str
    generation: int
    provider: NotRequired[str | None]
    retried: NotRequired[bool]


@dataclass(frozen=True, slots=True)
class Message:
    """One published message: its model, and the fields that every sender gives."""

    model: Any
    always: tuple[str, ...] | None = None  # None: those without a default.


MESSAGES: Final[dict[str, Message]] = {
    "envelope": Message(Envelope, ("version", "message_id", "payload")),
    "reply": Message(
        Reply,
        ("version", "message_id", "ok", "data", "provider", "instance", "attempt", "latency_ms"),
    ),
    "error": Message(Failure),
    "frame": Message(None),  # One of five forms: put together in `_frame`.
    "card": Message(Card),
    "heartbeat": Message(Heartbeat),
    "goodbye": Message(Goodbye),
    "gone": Message(Gone),
    "suspicion": Message(Suspicion),
    "cancel": Message(Cancel),
    "credit": Message(Credit),
    "ping": Message(Ping),
    "pong": Message(Pong),
    "drain": Message(Drain),
    "record": Message(ReachRecord),
    "outcomes": Message(Outcomes),
    "route": Message(RouteEntry),
    "register": Message(Register),
    "registered": Message(Registered),
    "membership": Message(MembershipOrder),
    "register-again": Message(RegisterAgain),
    "applied": Message(Applied),
    "card-entry": Message(CardEntry),
    "permit-ask": Message(PermitAsk),
    "permit": Message(PermitAnswer),
    "permit-outcome": Message(PermitOutcome),
    "set-route": Message(SetRoute),
    "set-canary": Message(SetCanary),
    "set-breaker": Message(SetBreaker),
    "drain-instances": Message(DrainInstances),
    "resync": Message(Resync),
    "explain": Message(Explain),
    "show": Message(Show),
    "list-instances": Message(ListInstances),
    "route-answer": Message(RouteAnswer),
    "alert": Message(Alert),
    "audit": Message(AuditEntry),
    "task-event": Message(TaskEvent, ("task_id", "state", "capability", "tenant", "event_id", "at")),
    "task-order": Message(TaskOrder),
    "unknown": Message(UnknownOutcome),
    "resolution": Message(Resolution),
    "list-unknowns": Message(ListUnknowns),
    "show-unknown": Message(ShowUnknown),
    "resolve-unknown": Message(ResolveUnknown),
    "unknown-answer": Message(UnknownAnswer),
    "idempotency-entry": Message(
        IdempotencyEntry,
        (
            "state",
            "capability",
            "tenant",
            "instance",
            "generation",
            "digest",
            "begun_at",
            "nonce",
        ),
    ),
    "service-ping": Message(ServicePing),
    "service-info": Message(ServiceInfo),
    "service-stats": Message(ServiceStats),
}
"""Every published message by the name of its file."""


def json_schemas() -> dict[str, dict[str, Any]]:
    """Give the JSON Schema of every message by name, each complete in itself (`$defs`)."""
    return {name: _published(name) for name in MESSAGES}


def schema_id(name: str) -> str:
    """Give the address of a message's schema: `schema://reach/envelope@1`."""
    return f"schema://reach/{name}@{VERSION}"


def capability_schema_path(name: str, side: Literal["input", "output"], version: str) -> PurePosixPath:
    """Give where a capability's schema lies below `schemas/`: `capabilities/<name>/<side>@<version>.json`.

    Raises `NameRefused` for a name, and `ValueError` for a side or version, that cannot be part of it.
    """
    name, version = _addressed(name, side, version)
    return PurePosixPath("capabilities", name, f"{side}@{version}.json")


def capability_schema_id(name: str, side: Literal["input", "output"], version: str) -> str:
    """Give a capability schema's address: `schema://<name>/<side>@<version>`. Raises as its path does."""
    name, version = _addressed(name, side, version)
    return f"schema://{name}/{side}@{version}"


def _addressed(name: str, side: str, version: str) -> tuple[str, str]:
    if side not in {"input", "output"}:
        raise ValueError(f"a capability has an input and an output schema, not {side!r}")
    if not _VERSION.fullmatch(version):
        raise ValueError(f"{version!r} is not a schema version: write '1', '1.2' or '1.2.3'")
    return names.capability(name), version


def faults_table() -> list[dict[str, str]]:
    """Give the table of failures, a row for each legal pair of code and reason."""
    return [
        {
            "code": row.code.value,
            "reason": row.reason.value,
            "executed": row.executed.value,
            "retryable": row.retryable.value,
            "advice": row.advice.value,
            "en": row.en,
            "zh": row.zh,
        }
        for row in FAULTS.values()
    ]


def export(folder: Path) -> list[Path]:
    """Write the contract into `folder` (made where missing) and give the files; the same models, the same bytes.

    Raises `OSError` when the folder cannot be written.
    """
    from reach.wire.asyncapi import asyncapi  # noqa: PLC0415 - it is made of what this module gives

    documents: dict[str, Any] = {
        **json_schemas(),
        "asyncapi": asyncapi(),
        "faults": {"faults": faults_table()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, document in sorted(documents.items()):
        path = folder / f"{name}.json"
        path.write_bytes(rendered(document))
        written.append(path)
    return written


def rendered(document: Any) -> bytes:
    """Give a document as the bytes that are committed: sorted keys, two spaces, one newline at the end."""
    return (json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


# ---------------------------------------------------------------------------------------- from model to schema


@cache
def bodies() -> dict[str, dict[str, Any]]:
    """Give the schema of every message and of every part, by title, with references `#/$defs/<title>`."""
    found: dict[str, dict[str, Any]] = {}
    for name, message in MESSAGES.items():
        if message.model is None:
            continue
        made = TypeAdapter(described(message.model)).json_schema()
        found = {**made.pop("$defs", {}), **found}  # What is a message of its own stands as it is there.
        if message.always is not None:
            made["required"] = list(message.always)
        found[title_of(name)] = made
    _refine_reply(found["Reply"])
    _refine_failure(found["Failure"])
    _refine_record(found["ReachRecord"], found["Attempt"])
    found["Accepted"] = TypeAdapter(Accepted).json_schema()
    found["FrameEnd"] = _frame_end(found["Reply"])
    found["Frame"] = _frame()
    for title, body in found.items():
        _explained(title, body)
    return found


@cache
def described(model: Any) -> Any:
    """Give what pydantic can describe: a model of its own as it is, a dataclass in place of a struct."""
    if not (isinstance(model, type) and issubclass(model, Struct)):
        return model
    inward = _PARTS[: _PARTS.index(model)] if model in _PARTS else _PARTS
    inner = {part.__name__: described(part) for part in inward}
    hints = get_type_hints(model, localns=inner, include_extras=True)
    made = [(info.name, hints[info.name], _default(info)) for info in fields(model)]
    twin = make_dataclass(model.__name__, made, kw_only=True)
    twin.__doc__ = model.__doc__
    return twin


def _default(info: FieldInfo) -> Any:
    """Give a field's default as a dataclass has it, also one that is made so that it is always sent."""
    factory = info.default_factory
    if factory is NODEFAULT:
        return field() if info.default is NODEFAULT else field(default=info.default)
    made = factory()
    constant = made is None or (isinstance(made, str | int | float) and made == factory())
    return field(default=made) if constant else field(default_factory=factory)


def title_of(name: str) -> str:
    """Give the title of a published message: the name of its model."""
    model = MESSAGES[name].model
    return "Frame" if model is None else str(model.__name__)


def _published(name: str) -> dict[str, Any]:
    title = title_of(name)
    parts = bodies()
    needed = sorted(_reachable(parts, title) - {title})
    schema = {"$schema": DIALECT, "$id": schema_id(name), **parts[title]}
    if needed:
        schema["$defs"] = {part: parts[part] for part in needed}
    return json.loads(json.dumps(schema))  # type: ignore[no-any-return]  # a copy that the caller may change


def _reachable(parts: dict[str, dict[str, Any]], title: str) -> set[str]:
    found, waiting = {title}, [title]
    while waiting:
        for reference in references(parts[waiting.pop()]):
            part = reference.rpartition("/")[2]
            if part not in found:
                found.add(part)
                waiting.append(part)
    return found


def references(node: Any) -> Iterable[str]:
    """Give every `$ref` below a node."""
    if isinstance(node, dict):
        if isinstance(target := node.get("$ref"), str):
            yield target
        for item in node.values():
            yield from references(item)
    elif isinstance(node, list):
        for item in node:
            yield from references(item)


def _refine_reply(reply: dict[str, Any]) -> None:
    """Say that there is an error exactly when the call failed."""
    reply["if"] = {"properties": {"ok": {"const": True}}}
    reply["then"] = {"properties": {"error": {"type": "null"}}}
    reply["else"] = {"properties": {"error": {"$ref": "#/$defs/Failure"}}, "required": ["error"]}


def _refine_failure(failure: dict[str, Any]) -> None:
    """Leave the list of reasons open: a newer peer may know more of them, and readers cope."""
    failure["properties"]["reason"] = {"type": "string", "examples": [reason.value for reason in Reason]}


def _refine_record(record: dict[str, Any], attempt: dict[str, Any]) -> None:
    """A record gives every field, so that a reader never has to tell "left out" from "not known"."""
    record["properties"]["ok"] = {"type": "boolean"}
    record["required"] = list(record["properties"])
    attempt["required"] = list(attempt["properties"])


def _frame_end(reply: dict[str, Any]) -> dict[str, Any]:
    return {
        "title": "FrameEnd",
        "description": "Body of an `end` frame: what a reply says beside its data.",
        "type": "object",
        "properties": {key: dict(value) for key, value in reply["properties"].items() if key != "data"},
    }


def _frame() -> dict[str, Any]:
    forms: dict[str, dict[str, Any]] = {
        "accepted": {"$ref": "#/$defs/Accepted"},
        "data": {},
        "ping": {"const": True},
        "end": {"$ref": "#/$defs/FrameEnd"},
        "error": {"$ref": "#/$defs/Failure"},
    }
    return {
        "title": "Frame",
        "description": "One piece of an answer that comes in several messages.",
        "type": "object",
        "properties": {
            "stream_id": {"type": "string"},
            "seq": {"type": "integer", "minimum": 0, "maximum": MAX_WHOLE},
            **forms,
        },
        "required": ["stream_id", "seq"],
        "oneOf": [{"required": [form]} for form in forms],
    }


def _explained(title: str, body: dict[str, Any]) -> None:
    """Give every field its meaning, and drop the titles that pydantic makes of field names."""
    description = body.get("description", "")
    body["description"] = " ".join(description.split("\n\n")[0].split())
    for name, schema in body.get("properties", {}).items():
        if isinstance(schema.get("title"), str) and "properties" not in schema:
            del schema["title"]
        if (text := meaning(title, name)) is not None:
            schema["description"] = text
        for part in _inline_parts(schema):
            _explained(part["title"], part)


def _inline_parts(schema: dict[str, Any]) -> Iterable[dict[str, Any]]:
    for part in (schema, *schema.get("anyOf", ())):
        if "properties" in part and "title" in part:
            yield part
