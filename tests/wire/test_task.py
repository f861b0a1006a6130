"""Events of tasks on the wire: written, read in either form and from scripts, and as CloudEvents."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.errors import NotOnTheWire, SchemaInvalid
from reach.faults import Reason
from reach.wire import codec, subjects
from reach.wire.cloudevent import from_cloud_event, to_cloud_event
from reach.wire.envelope import Envelope
from reach.wire.reply import Failure
from reach.wire.task import TERMINAL, TaskEvent, TaskOrder, TaskState
from reach.wire.trace import Trace
from tests.wire.specimens import task_events

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
BARE = {"event_id": "e", "task_id": "t", "state": "running", "capability": "a"}
TOKENS = st.text("abcXYZ019_-", min_size=1, max_size=20)


@st.composite
def events(draw: st.DrawFn) -> TaskEvent:
    return TaskEvent(
        task_id=draw(TOKENS),
        state=draw(st.sampled_from(TaskState)),
        capability=draw(st.from_regex(r"[a-z0-9_-]{1,8}(\.[a-z0-9_-]{1,8}){0,2}", fullmatch=True)),
        tenant=draw(TOKENS),
        event_id=draw(TOKENS),
        at=draw(st.integers(0, 4_000_000_000_000)),
        attempt=draw(st.integers(0, 9)),
        lost=draw(st.integers(0, 9)),
        run=draw(st.integers(1, 9)),
        instance=draw(st.none() | TOKENS),
        data=draw(VALUES),
        error=draw(st.none() | st.just(Failure.of(Reason.DEADLINE))),
        sequence=draw(st.none() | st.integers(1, 2**40)),
    )


@given(events())
def test_an_event_is_read_as_it_was_written(event: TaskEvent) -> None:
    """Both forms of the body give back the event, and the subject leads to it."""
    assert event == TaskEvent.read(event.subject, event.pack())
    assert event == TaskEvent.unpack(event.pack())
    try:
        text = codec.pack_json(event.to_map())
    except NotOnTheWire:
        return  # A map of "$bytes" alone has no form in JSON.
    assert event == TaskEvent.read(event.subject, text)


@given(events())
def test_an_event_survives_as_a_cloud_event(event: TaskEvent) -> None:
    """CloudEvents: there and back is the same event; attributes are as the standard wants them."""
    try:
        cloud = to_cloud_event(event)
    except NotOnTheWire:
        return
    assert event == from_cloud_event(json.loads(json.dumps(cloud)))
    assert [] == [name for name in cloud if not re.fullmatch(r"[a-z0-9]{1,20}", name)]
    assert {
        "specversion": "1.0",
        "type": f"reach.task.{event.state}",
        "id": event.event_id,
    }.items() <= cloud.items()


def test_the_trace_of_a_submission_travels() -> None:
    """The submission's trace context is there as `traceparent`, and its envelope comes back whole."""
    event = task_events()["task-queued"]
    assert event.envelope is not None
    event.envelope.trace = Trace("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", [], 5)
    event.callback = event.callback_states = event.notify = None
    cloud = to_cloud_event(event)

    assert "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" == cloud["traceparent"]
    assert event == from_cloud_event(cloud)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"type": "com.example.other"},
        {"specversion": "0.3"},
        {"source": "/elsewhere"},
        {"time": "yesterday"},
        {"type": "reach.task.dancing"},
        {"attempt": "many"},
        {"sequence": "last"},
    ],
)
def test_another_cloud_event_is_refused(wrong: dict[str, Any]) -> None:
    """What is no event of a task is a refusal, whatever is wrong with it."""
    cloud = to_cloud_event(task_events()["task-completed"])
    with pytest.raises(SchemaInvalid, match="CloudEvent"):
        from_cloud_event({**cloud, **wrong} if wrong else {})


def test_the_subject_wins_over_the_body() -> None:
    """A scheduled submission comes due with the very same bytes, as queued."""
    event = TaskEvent(task_id="t1", state=TaskState.SCHEDULED, capability="a.b", due=5)
    read = TaskEvent.read("task.event.queued.north.t2.c.d", event.pack())

    assert ("queued", "north", "t2", "c.d", event.event_id) == (
        read.state,
        read.tenant,
        read.task_id,
        read.capability,
        read.event_id,
    )


@pytest.mark.parametrize(
    ("body", "payload"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b"", {}),
        (Envelope(payload={"a": 2}).pack(), {"a": 2}),
        (b'{"version": 1, "message_id": "m", "payload": {"a": 3}}', {"a": 3}),
    ],
    ids=["json", "nothing", "envelope", "json envelope"],
)
def test_a_script_queues_without_knowing_events(body: bytes, payload: dict[str, Any]) -> None:
    """Bare parameters, or an envelope, on a queued subject are a submission whose event is named by the task."""
    event = TaskEvent.read("task.event.queued.default.close-1.ledger.close", body)

    assert event.envelope is not None
    assert (payload, "close-1") == (event.envelope.payload, event.event_id)


def test_numbers_as_other_languages_write_them() -> None:
    """A whole number that was sent as a float is one."""
    body = {"event_id": "e", "task_id": "t", "state": "running", "capability": "a", "at": 5.0, "attempt": 2.0}
    event = TaskEvent.read("task.event.running.default.t.a", codec.pack(body))

    assert (5, 2) == (event.at, event.attempt)


@pytest.mark.parametrize(
    ("subject", "body"),
    [
        ("task.event.dancing.default.t.a", b"{}"),
        ("task.event.running.default.t", b"{}"),
        ("task.submit.a", b"{}"),
        ("task.event.running.default.t.a", b"\xc1"),
        ("task.event.running.default.t.a", b"[]"),
        (
            "task.event.running.default.t.a",
            codec.pack_json({**BARE, "run": 0}),
        ),
        (
            "task.event.running.default.t.a",
            codec.pack_json({**BARE, "blob": {}}),
        ),
    ],
)
def test_what_is_no_event_is_refused(subject: str, body: bytes) -> None:
    """Garbage on the subjects of events is a refusal, not an event."""
    with pytest.raises(SchemaInvalid):
        TaskEvent.read(subject, body)


def test_data_that_cannot_cross_is_named() -> None:
    """What does not fit is told with its path."""
    with pytest.raises(NotOnTheWire, match=r"data\.n"):
        TaskEvent(task_id="t", state=TaskState.COMPLETED, capability="a", data={"n": 2**70}).pack()
    with pytest.raises(NotOnTheWire, match="n: an integer"):
        TaskEvent(
            task_id="t", state=TaskState.QUEUED, capability="a", envelope=Envelope(payload={"n": 2**70})
        ).pack()


def test_an_order_is_read_in_either_form() -> None:
    """Orders come as msgpack or JSON; an empty one has no conditions; another body is refused."""
    order = TaskOrder(attempt=2, data={"ok": True}, event_id="e")

    assert order == TaskOrder.read(order.pack())
    assert order == TaskOrder.read(codec.pack_json(order.to_map()))
    assert TaskOrder() == TaskOrder.read(b"")
    for body in (b"[]", b'{"attempt": "two"}', b'{"attempt": -1}'):
        with pytest.raises(SchemaInvalid):
            TaskOrder.read(body)


def test_there_are_five_ends() -> None:
    """TASK-1: completed, failed, cancelled, timed out and dead are the ends."""
    assert {"completed", "failed", "cancelled", "timed_out", "dead"} == {state.value for state in TERMINAL}


def test_a_place_is_split_from_its_subject() -> None:
    """Only subjects of events have a place."""
    assert ("queued", "t", "id", "a.b") == subjects.task_place(
        subjects.task_event("queued", "t", "id", "a.b")
    )
    for other in ("task.submit.a.b.c.d", "task.event.queued.t.id", "task.event.queued.t.id.", "cap.a"):
        assert subjects.task_place(other) is None
