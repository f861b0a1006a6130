"""The events of tasks as CloudEvents 1.0, in their structured JSON form: what webhooks and other systems read.

One event of ours is one CloudEvent, with the same id, so that whoever gets it twice knows. What the standard has no
word for travels as extensions; their names are lower-case letters and digits, as the standard wants it. Both ways
are pure: `from_cloud_event(to_cloud_event(e))` is `e`, but for what only the bus needs (`notify`, `blob`).
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from reach.errors import SchemaInvalid
from reach.wire import codec
from reach.wire.envelope import Envelope
from reach.wire.reply import Failure
from reach.wire.task import TaskEvent, TaskState

SPEC_VERSION: Final = "1.0"
CONTENT_TYPE: Final = "application/cloudevents+json"
TYPE: Final = "reach.task."
"""Types are `reach.task.<state>`."""

_SOURCE: Final = re.compile(r"/reach/tasks/([A-Za-z0-9_-]+)")
_NUMBERS: Final = {
    "attempt": "attempt",
    "workerslost": "lost",
    "run": "run",
    "duetime": "due",
    "generation": "generation",
}
_TEXTS: Final = {"agentid": "agent_id", "instance": "instance", "submitter": "source"}


def to_cloud_event(event: TaskEvent) -> dict[str, Any]:
    """Give the CloudEvent: a map that `json.dumps` takes. `traceparent` is the submission's, where it is there."""
    body: dict[str, Any] = {
        "specversion": SPEC_VERSION,
        "id": event.event_id,
        "source": f"/reach/tasks/{event.tenant}",
        "type": TYPE + event.state,
        "subject": event.task_id,
        "time": _rfc3339(event.at),
        "datacontenttype": "application/json",
        "capability": event.capability,
    }
    for word, name in (_NUMBERS | _TEXTS).items():
        value = getattr(event, name)
        if value not in (None, 0):
            body[word] = value
    if event.sequence is not None:
        body["sequence"] = f"{event.sequence:020d}"  # As the extension says: it sorts as text.
    envelope = event.envelope
    if envelope is not None and envelope.trace is not None:
        body["traceparent"] = f"00-{envelope.trace.trace_id}-{envelope.trace.span_id}-01"
    data = {
        "data": event.data,
        "error": None if event.error is None else event.error.to_map(),
        "envelope": None if envelope is None else envelope.to_map(),
    }
    # Through our own JSON, so that bytes have the form that they have everywhere.
    body["data"] = json.loads(
        codec.pack_json({key: value for key, value in data.items() if value is not None})
    )
    return body


def from_cloud_event(body: dict[str, Any]) -> TaskEvent:
    """Read one back. Raises `SchemaInvalid` for what is no event of a task."""
    try:
        tenant = _SOURCE.fullmatch(body["source"])
        if body["specversion"] != SPEC_VERSION or not body["type"].startswith(TYPE) or tenant is None:
            raise SchemaInvalid("this CloudEvent is not the event of a task: its type is reach.task.<state>")
        # In our own form again, which knows what bytes look like in JSON.
        data = codec.unpack(json.dumps(body.get("data") or {}).encode())
        event = TaskEvent(
            task_id=body["subject"],
            state=TaskState(body["type"].removeprefix(TYPE)),
            capability=body["capability"],
            tenant=tenant[1],
            event_id=body["id"],
            at=round(datetime.fromisoformat(body["time"]).timestamp() * 1000),
            data=data.get("data"),
            error=None if "error" not in data else Failure.from_map(data["error"]),
            envelope=None if "envelope" not in data else Envelope.from_map(data["envelope"]),
            sequence=int(body["sequence"]) if "sequence" in body else None,
        )
        for word, name in (_NUMBERS | _TEXTS).items():
            if word in body:
                setattr(event, name, body[word])
        return msgspec.convert(event.to_map(), TaskEvent)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SchemaInvalid(f"this is not the CloudEvent of a task: {error}") from None


def _rfc3339(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
