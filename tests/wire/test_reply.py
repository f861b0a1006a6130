"""The answer: whatever arrives, its caller is told something that holds together."""

import math
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from reach.errors import BY_CODE, ReachError
from reach.faults import FAULTS, Advice, Code, Executed, Reason
from reach.wire import codec, schema
from reach.wire.frame import Frame
from reach.wire.reply import Failure, Reply
from tests.wire.specimens import frames, replies

REPLY = Draft202012Validator(schema.json_schemas()["reply"])
FRAME = Draft202012Validator(schema.json_schemas()["frame"])

ODD: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.sampled_from([-1, 0, 1, 7.0, 7.5, 2**64 - 1, 1e300, math.inf, math.nan])
    | st.sampled_from(["", "x", "TIMEOUT", "DEADLINE", "no", "maybe", "wait"])
    | st.binary(max_size=3)
    | st.just([])
    | st.just({})
)
FAILURE_FIELDS = ("code", "reason", "message", "executed", "retryable", "advice", "retry_after_ms", "cause")
FAILURES = st.fixed_dictionaries({}, optional=dict.fromkeys(FAILURE_FIELDS, ODD))
REPLY_FIELDS = [key for key in Reply(ok=True).to_map(full=True) if key != "error"]
REPLIES = st.fixed_dictionaries(
    {}, optional={**dict.fromkeys([*REPLY_FIELDS, "trace"], ODD), "error": ODD | FAILURES}
)


@given(m=REPLIES)
@settings(max_examples=500, deadline=None)
def test_any_map_is_read_as_a_reply_that_holds_together(m: dict[str, Any]) -> None:
    """Reading never raises; what comes out is a success or a failure, and good to send on."""
    reply = Reply.from_map(m)
    assert reply.ok == (reply.error is None)
    assert REPLY.is_valid(reply.to_map())
    assert REPLY.is_valid(reply.to_map(full=True))


@given(m=REPLIES)
@settings(max_examples=300, deadline=None)
def test_only_a_clear_success_is_one(m: dict[str, Any]) -> None:
    """A reply is a success only when it says so and carries no error: doubt is never reported as success."""
    assert Reply.from_map(m).ok == (m.get("ok") is True and m.get("error") is None)


def one_change() -> st.SearchStrategy[dict[str, Any]]:
    """A good reply with some fields replaced: most of these are right but for one thing."""
    good = st.sampled_from([reply.to_map() for reply in replies().values()])
    changes = st.dictionaries(
        st.sampled_from([*REPLY_FIELDS, "trace", "error", "more"]), ODD | FAILURES, max_size=2
    )
    return st.tuples(good, changes).map(lambda parts: parts[0] | parts[1])


@given(m=one_change())
@settings(max_examples=600, deadline=None)
def test_the_quick_reader_and_the_decoder_agree(m: dict[str, Any]) -> None:
    """What msgspec reads whole is what reading by hand gives, and it takes nothing for a success that is none there."""
    packed = msgpack.packb(m)
    expected, found = Reply.from_map(codec.unpack(packed)), Reply.read(packed)
    assert isinstance(found, Reply)
    if expected.trace is not None and found.trace is not None:  # Missing ids are made up, each time anew.
        expected.trace.trace_id = m["trace"].get("trace_id") or found.trace.trace_id
        expected.trace.span_id = m["trace"].get("span_id") or found.trace.span_id
    for reply in (expected, found):  # By hand a whole number stays one.
        reply.latency_ms = float(reply.latency_ms)
        reply.cost = None if reply.cost is None else float(reply.cost)
    assert repr(expected.to_map(full=True)) == repr(found.to_map(full=True))


@pytest.mark.parametrize("version", [0, 7, -1, 2**64 - 1])
def test_a_reply_that_was_read_is_of_our_version(version: int) -> None:
    """Whatever version an answer says it has, what its caller holds is one of ours, and good to send on."""
    reply = Reply.read(codec.pack({"ok": True, "data": 1, "version": version}))
    assert isinstance(reply, Reply)
    assert (1, True) == (reply.version, REPLY.is_valid(reply.to_map()))


@pytest.mark.parametrize("name", replies())
def test_a_reply_that_was_read_packs_as_it_was(name: str) -> None:
    """What the quick reader gives, sent on, has the fields that are always there."""
    read = Reply.read(replies()[name].pack())
    assert isinstance(read, Reply)
    assert replies()[name].to_map() == codec.unpack(read.pack())


@pytest.mark.parametrize("name", replies())
def test_a_reply_survives_packing(name: str) -> None:
    """Packed and read by hand, every field is as it was, with defaults left out or not."""
    reply = replies()[name]
    assert reply == Reply.from_map(codec.unpack(codec.pack(reply.to_map())))
    assert reply == Reply.from_map(codec.unpack(codec.pack_json(reply.to_map(full=True))))


def test_a_reply_that_says_nothing_is_an_unknown_failure() -> None:
    """A reply that does not hold together is `UNKNOWN/UNMAPPED`, executed maybe."""
    error = Reply.from_map({}).error
    assert error is not None
    assert (Code.UNKNOWN, Reason.UNMAPPED, Executed.MAYBE) == (error.code, error.reason, error.executed)


def test_success_and_failure_at_once_is_a_failure() -> None:
    """Nobody may take a contradictory reply for a success."""
    reply = Reply.from_map({"ok": True, "data": 1, "error": Failure.of(Reason.OVERLOADED).to_map()})
    assert not reply.ok


@pytest.mark.parametrize(("code", "reason"), FAULTS)
def test_a_failure_and_its_exception_are_two_forms_of_one(code: Code, reason: Reason) -> None:
    """ERR-1: each pair of the table crosses the wire, becomes the exception of its code, and comes back."""
    failure = Failure.of(reason, code=code, retry_after_ms=10, limit={"name": "x"}, cause="DEADLINE")
    arrived = Failure.from_map(codec.unpack(codec.pack(failure.to_map())))
    error = arrived.to_error("rch_1")
    assert failure == arrived
    assert type(error) is BY_CODE[code]
    assert failure == Failure.of_error(error)
    assert f"{code}/{reason}: {failure.message} [rch_1]" == str(error)


@pytest.mark.parametrize(
    "words",
    [
        {"code": "NEW_CODE", "reason": "DEADLINE"},
        {"code": "TIMEOUT", "reason": "NEW_REASON"},
        {"code": "TIMEOUT", "reason": "OVERLOADED"},
        {"code": ["TIMEOUT"], "reason": {}},
    ],
)
def test_words_of_a_newer_peer_become_unmapped(words: dict[str, Any]) -> None:
    """A code or reason that this version does not know is `UNKNOWN/UNMAPPED`; its sentence is kept."""
    failure = Failure.from_map(
        {**words, "message": "From the future.", "executed": "later", "advice": "pray"}
    )
    assert (Code.UNKNOWN, Reason.UNMAPPED) == (failure.code, failure.reason)
    assert (Executed.MAYBE, Advice.TRY_OTHER) == (failure.executed, failure.advice)
    assert "From the future." == failure.message


def test_unwrap_gives_the_data_or_raises_the_failure() -> None:
    """`unwrap` gives `data`, or raises the subclass of the code with the reach_id."""
    assert {"number": "R-17", "total": "119.00"} == replies()["reply-ok"].unwrap()
    failed = Reply(ok=False, error=Failure.of(Reason.OVERLOADED), reach_id="rch_1")
    with pytest.raises(BY_CODE[Code.RATE_LIMITED]) as caught:
        failed.unwrap()
    assert "rch_1" == caught.value.reach_id
    with pytest.raises(ReachError):
        Reply(ok=False).unwrap()


def test_full_json_says_everything_always() -> None:
    """CALL-10: in full, a plain-JSON caller finds every field, whatever its value."""
    always = {"provider", "instance", "attempt", "latency_ms", "degraded", "degrade_level", "reach_id"}
    assert always <= Reply(ok=True).to_map(full=True).keys()


# ------------------------------------------------------------------------------------------------------- frames

KIND_FIELDS = ("accepted", "data", "ping", "end", "error", "more")
ANY_FRAMES = st.fixed_dictionaries(
    {"stream_id": st.just("s") | ODD, "seq": st.integers(0, 3) | ODD},
    optional=dict.fromkeys(KIND_FIELDS, ODD),
)
KINDS = ("data", "end", "accepted", "ping", "error")


@given(m=ANY_FRAMES)
@settings(max_examples=300, deadline=None)
def test_a_map_is_a_frame_or_refused(m: dict[str, Any]) -> None:
    """Reading gives a frame of a known kind or raises ValueError, and nothing else."""
    try:
        frame = Frame.from_map(m)
    except ValueError:
        return
    assert frame.kind in KINDS
    assert frame.kind in {"data", "ping"} or type(frame.body) is dict
    assert type(frame.seq) is int


@given(m=ANY_FRAMES)
@settings(max_examples=300, deadline=None)
def test_what_the_schema_calls_a_frame_is_read(m: dict[str, Any]) -> None:
    """Whatever the published schema allows is decoded."""
    if FRAME.is_valid(m):
        assert Frame.from_map(m).kind in m


@pytest.mark.parametrize("name", frames())
def test_a_frame_survives_packing(name: str) -> None:
    """Packed and read by hand, a frame of each kind is as it was, and the schema allows it."""
    frame = frames()[name]
    assert frame == Frame.from_map(codec.unpack(codec.pack(frame.to_map())))
    assert [] == [error.message for error in FRAME.iter_errors(frame.to_map())]


def test_an_end_without_a_body_is_a_map_on_the_wire() -> None:
    """Only data may be anything; the other kinds carry a map, also an empty one."""
    assert {"stream_id": "s", "seq": 3, "end": {}} == Frame("s", 3, "end").to_map()
    assert {"stream_id": "s", "seq": 1, "data": None} == Frame("s", 1, "data").to_map()


def test_an_error_frame_gives_its_failure() -> None:
    """The body of an error frame is a failure; a body that is none is an unknown one."""
    assert Failure.of(Reason.IDLE_STREAM) == frames()["frame-error"].failure()
    assert Reason.UNMAPPED == Frame("s", 1, "error").failure().reason
