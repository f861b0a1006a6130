"""Whether a message that was seen on the bus is what the published contract says.

It reads the committed AsyncAPI document as a stranger would: the subject leads to a channel, the channel to
its messages, the body to one of them, and the message to its schema. Bodies are decoded with the plain
libraries, not with the codec under test.

    seen = assert_matches_contract(delivery.subject, delivery.data)      # "envelope", "frame", …
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import msgpack
from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

SCHEMAS = Path(__file__).resolve().parents[2] / "schemas"
DOCUMENT = "urn:reach:asyncapi"
ANY_INBOX = re.compile(r"_INBOX\..+")
CAPABILITY = r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*"
TOKEN = r"[A-Za-z0-9_-]+"
FORMS = {"capability": CAPABILITY, "lane": rf"{TOKEN}\.{CAPABILITY}"}


@cache
def document() -> dict[str, Any]:
    """Give the committed AsyncAPI document."""
    loaded: dict[str, Any] = json.loads((SCHEMAS / "asyncapi.json").read_bytes())
    return loaded


@cache
def _registry() -> Registry[Any]:
    made: Registry[Any] = Registry().with_resource(DOCUMENT, DRAFT202012.create_resource(document()))
    return made


@cache
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": DOCUMENT + schema}, registry=_registry())


@cache
def _channels() -> list[tuple[re.Pattern[str], str]]:
    found = []
    for name, channel in document()["channels"].items():
        if channel["address"] is None:
            found.append((ANY_INBOX, name))  # Clients that are not ours answer to inboxes of their own.
            continue
        parts = re.split(r"\{(\w+)\}", channel["address"])
        pattern = "".join(
            FORMS.get(part, TOKEN) if index % 2 else re.escape(part) for index, part in enumerate(parts)
        )
        found.append((re.compile(pattern), name))
    return found


def channel_of(subject: str) -> str | None:
    """Give the channel that a subject belongs to; None for what is not of the contract, such as `$JS.…`."""
    return next((name for pattern, name in _channels() if pattern.fullmatch(subject)), None)


def decoded(data: bytes) -> Any:
    """Decode a body in either form, with the plain libraries."""
    if not data:
        return None
    return json.loads(data) if data.startswith(b"{") else msgpack.unpackb(data)


def _message_in(names: set[str], body: Any) -> str:
    """Tell which message of a channel a body is, by the fields that no other has."""
    if body is None and "nothing" in names:
        return "nothing"
    names = names - {"nothing"} or names
    if len(names) == 1:
        return next(iter(names))
    if "envelope" in names:
        return "envelope" if {"version", "message_id", "payload"} <= body.keys() else "parameters"
    if str(body.get("type", "")).startswith("io.nats.micro.v1."):
        return "service-" + str(body["type"]).removeprefix("io.nats.micro.v1.").removesuffix("_response")
    if "ok" in body:
        return "reply"
    if "permit-ask" in names:
        return "permit-outcome" if "permit" in body else "permit-ask"
    told = {"stream_id": "frame", "status": "registered", "applied": "applied", "in_force": "route-answer"}
    told["rows"] = "unknown-answer"
    found = next((name for field, name in told.items() if field in body), None)
    return found or ("permit" if "breaker" in body else "pong")


def assert_matches_contract(subject: str, data: bytes) -> str:
    """Fail unless the message is one that the contract allows on this subject; give its name."""
    channel = channel_of(subject)
    assert channel is not None, f"{subject} is not a subject of the contract"
    messages = document()["components"]["messages"]
    references = document()["channels"][channel]["messages"].values()
    allowed = {reference["$ref"].rpartition("/")[2] for reference in references}
    body = decoded(data)
    assert body is None or isinstance(body, dict), f"{subject}: a body is a map, not {body!r}"
    name = _message_in({messages[form]["name"] for form in allowed}, body)
    form = f"{name}-json" if data.startswith(b"{") and f"{name}-json" in messages else name
    assert form in allowed, f"{subject}: {form} is not said there"
    errors = sorted(_validator(messages[form]["payload"]["$ref"]).iter_errors(body), key=str)
    found = [f"{error.json_path}: {error.message}" for error in errors]
    assert found == [], f"{subject}: not a {name}: {found}"
    return name
