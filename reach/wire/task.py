"""The life of a task, as it stands on the bus: one message for each change of state.

A task is its events. Each lies on `task.event.<state>.<tenant>.<task_id>.<capability>`, where the subject wins over
the body: a scheduled submission comes due as `queued` with the very same bytes. An event says all that whoever
goes on needs (attempt, workers lost, where the last checkpoint is), so the last one is the state; only what was
submitted stands in the first alone. `event_id` is the writer's proof: on a refused write it looks whether the
event that is there is its own.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from msgspec import MsgspecError, Struct, field
from msgspec.msgpack import Decoder, Encoder
from pydantic import Field

from reach import ids
from reach.errors import SchemaInvalid
from reach.wire import codec, subjects
from reach.wire.codec import refuse_ext
from reach.wire.envelope import BlobRef, Envelope, is_blob
from reach.wire.reply import Failure
from reach.wire.whole import Count, Whole, whole

MOST_MS: Final = 253_402_300_799_999
"""The end of the year 9999: what comes after it has no form as text."""

DEFAULT_TENANT: Final = "default"
"""On whose behalf a task is when nobody says."""


class TaskState(StrEnum):
    """The states of a task (behaviour TASK-1); each is also the name of the event that leads there."""

    QUEUED = "queued"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    PROGRESS = "progress"
    INPUT_REQUIRED = "input_required"
    INPUT_RECEIVED = "input_received"
    RETRYING = "retrying"
    INTERRUPTED = "interrupted"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    DEAD = "dead"

    @property
    def is_terminal(self) -> bool:
        """Whether the task has ended."""
        return self in TERMINAL


TERMINAL: Final = frozenset(
    {
        TaskState.COMPLETED,
        TaskState.FAILED,
        TaskState.CANCELLED,
        TaskState.TIMED_OUT,
        TaskState.DEAD,
    }
)
"""The five ends of a task; it has exactly one of them."""


class TaskEvent(Struct, kw_only=True, omit_defaults=True, gc=False):
    """One change in the life of a task.

    `at` is epoch milliseconds of the broker. `attempt` counts starts of the handler, `lost` workers that were lost
    with the task, `run` how often it was submitted anew after its end. `envelope` is what was submitted: in the
    first event. `data` is what the state brings: the result, the progress, the question, the answer. `sequence` is
    its place in the stream; whoever reads it there fills it in. `callback` is told of its `callback_states`, of its
    ends where there are none.
    """

    task_id: str
    state: TaskState
    capability: str
    tenant: str = field(default_factory=DEFAULT_TENANT.__str__)
    event_id: Annotated[str, Field(min_length=1)] = field(default_factory=ids.new_id)
    at: Whole = field(default_factory=int)
    attempt: Whole = 0
    lost: Whole = 0
    run: Count = 1
    agent_id: str | None = None
    instance: str | None = None
    generation: Whole | None = None
    source: str | None = None
    due: Whole | None = None
    checkpoint: Whole | None = None
    data: Any = None
    blob: BlobRef | None = None
    error: Failure | None = None
    envelope: Envelope | None = None
    callback: str | None = None
    callback_states: list[str] | None = None
    notify: str | None = None
    sequence: Whole | None = None

    @property
    def subject(self) -> str:
        """Where it stands."""
        return subjects.task_event(self.state, self.tenant, self.task_id, self.capability)

    def to_map(self) -> dict[str, Any]:
        """Give the wire form; what has its default is left out."""
        m: dict[str, Any] = msgspec.to_builtins(self, builtin_types=(bytes,))
        return m

    def pack(self) -> bytes:
        """Encode as msgpack. Raises `NotOnTheWire`; `codec.wire_form` has given data and payload."""
        try:
            return _encode(self)
        except (ValueError, TypeError, OverflowError):
            if self.envelope is not None:
                self.envelope.pack()  # Which says what does not fit, and where.
            codec.explain({"data": self.data}, as_json=False)

    @classmethod
    def read(cls, subject: str, data: bytes) -> TaskEvent:
        """Read an event off its subject, in either form.

        A script may publish a task as `task.event.queued.…` with the bare parameters, or an envelope, as its body.
        Raises `SchemaInvalid` for what is no event.
        """
        place = subjects.task_place(subject)
        if place is None or place[0] not in _STATES:
            raise SchemaInvalid(f"{subject!r} is not the subject of a task's event")
        state, tenant, task_id, capability = place
        event = _decoded(data)
        if event is None:
            envelope = Envelope.read(data) if data else Envelope()
            # No id of its own: whoever reads it again must find the same.
            event = cls(task_id=task_id, state=_STATES[state], capability=capability, event_id=task_id)
            event.envelope, event.source = envelope, envelope.source
        event.state, event.tenant = _STATES[state], tenant
        event.task_id, event.capability = task_id, capability
        return event

    @classmethod
    def unpack(cls, data: bytes) -> TaskEvent:
        """Read an event that says itself which task it is about. Raises `SchemaInvalid`."""
        event = _decoded(data)
        if event is None:
            raise SchemaInvalid("this is not the event of a task: it names none")
        return event


def _decoded(data: bytes) -> TaskEvent | None:
    """Read a body that is an event; None for a body that is something else. Raises `SchemaInvalid`."""
    try:
        event = _decode(data)
    except (MsgspecError, ValueError, RecursionError, SchemaInvalid):
        body = codec.unpack(data) if data else {}
        if not body.keys() >= _ALWAYS:
            return None
        for name in _WHOLE & body.keys():  # As other languages write them: see `reach.wire.whole`.
            number = whole(body[name])
            body[name] = body[name] if number is None else number
        try:
            event = msgspec.convert(body, TaskEvent)
        except (MsgspecError, ValueError) as error:
            raise SchemaInvalid(f"this is not the event of a task: {error}") from None
    if max(event.at, event.due or 0) > MOST_MS:
        raise SchemaInvalid("the times of this event (at, due) are epoch milliseconds before the year 10000")
    if not codec.has_text_keys(event.data) or (event.blob is not None and not is_blob(event.blob)):
        raise SchemaInvalid("the data of this event has keys that are not text, or a blob that is none")
    return event


_STATES: Final[dict[str, TaskState]] = {state.value: state for state in TaskState}
_ALWAYS: Final = frozenset({"event_id", "task_id", "state", "capability"})
_WHOLE: Final = frozenset({"at", "attempt", "lost", "run", "generation", "due", "checkpoint"})
_encode: Final = Encoder().encode
_decode: Final = Decoder(TaskEvent, ext_hook=refuse_ext).decode


class TaskOrder(Struct, kw_only=True, omit_defaults=True, gc=False):
    """A request about one task, on `task.input.…` (an answer) or `task.cancel.…`.

    An order that names an `attempt` (or, an answer, the `event_id` of its question) binds to it: later it does
    nothing. With `probe` it only asks whether somebody has the task; whoever has it answers.
    """

    source: str | None = None
    attempt: Whole | None = None
    event_id: str | None = None
    data: Any = None
    reason: str | None = None
    probe: bool = False

    def to_map(self) -> dict[str, Any]:
        """Give the wire form; what has its default is left out."""
        m: dict[str, Any] = msgspec.to_builtins(self, builtin_types=(bytes,))
        return m

    def pack(self) -> bytes:
        """Encode as msgpack. Raises `NotOnTheWire`."""
        return codec.pack(self.to_map())

    @classmethod
    def read(cls, data: bytes) -> TaskOrder:
        """Read either form; an empty body is an order without conditions. Raises `SchemaInvalid`."""
        try:
            return msgspec.convert(codec.unpack(data), TaskOrder) if data else cls()
        except (MsgspecError, ValueError) as error:
            raise SchemaInvalid(f"this is not an order about a task: {error}") from None
