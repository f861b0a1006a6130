"""Guarded functions: a program's own body under the rules of a call."""

import asyncio
import threading
from typing import Any

import pytest

import reach
from reach.call.context import current
from reach.errors import (
    CallTimeout,
    NameRefused,
    NotExecuted,
    RateLimited,
    SchemaInvalid,
    UnknownFailure,
    Unreachable,
)
from reach.faults import Executed, Reason
from reach.observe.records import MemorySink, Recorder
from reach.wire.record import ReachRecord


class Watched:
    """A recorder whose records can be looked at, and a body that fails as told, then succeeds."""

    def __init__(self) -> None:
        self.sink = MemorySink()
        self.recorder = Recorder(self.sink)
        self.ran = 0

    @property
    def records(self) -> list[ReachRecord]:
        return self.sink.records

    def guard(self, *errors: BaseException, **options: Any) -> Any:
        failures = list(errors)

        @reach.guard("order.query", recorder=self.recorder, **options)
        async def body(value: str = "done") -> str:
            self.ran += 1
            if failures:
                raise failures.pop(0)
            return value

        return body


@pytest.fixture
def watched() -> Any:
    found = Watched()
    yield found
    found.recorder.close()


async def test_the_body_runs_and_its_result_passes(watched: Watched) -> None:
    """A guarded function is still the function: arguments, result, name; one record says that it was done here."""
    body = watched.guard()
    assert await body("x") == "x"
    [record] = watched.records
    assert (record.capability, record.outcome, record.provider) == ("order.query", "ok", "local")
    assert [(attempt.subject, attempt.decision) for attempt in record.attempts] == [("local", "done")]
    assert body.__name__ == "body"


async def test_reply_tells_how_it_went(watched: Watched) -> None:
    """`.reply(…)` never raises for a failed run."""
    reply = await watched.guard().reply("x")
    assert (reply.ok, reply.data, reply.provider, reply.attempt) == (True, "x", "local", 1)
    reply = await watched.guard(KeyError("hunter2")).reply()
    assert (reply.ok, reply.error.reason, reply.error.executed) == (False, Reason.HANDLER_ERROR, Executed.YES)
    assert "hunter2" not in reply.error.message
    assert [record.reach_id for record in watched.records][-1] == reply.reach_id


async def test_the_bodys_own_errors_pass_unchanged_and_are_not_repeated(watched: Watched) -> None:
    """RETRY-1: what was executed is never repeated, idempotent or not."""
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        await watched.guard(error, idempotent=True)()
    assert caught.value is error
    assert watched.ran == 1


@pytest.mark.parametrize("error", [ConnectionRefusedError(), NotExecuted("nothing done")], ids=repr)
async def test_what_cannot_have_happened_is_repeated_for_writes_too(
    watched: Watched, error: Exception
) -> None:
    """RETRY-1: executed=no is always safe."""
    assert await watched.guard(error)() == "done"
    assert watched.ran == 2
    [record] = watched.records
    assert (record.outcome, record.retried) == ("ok", True)


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError()], ids=repr)
async def test_what_may_have_happened_is_repeated_only_when_idempotent(
    watched: Watched, error: Exception
) -> None:
    """RETRY-2: a write whose outcome is unknown is told as such, from the original error."""
    assert await watched.guard(error, idempotent=True)() == "done"
    assert watched.ran == 2
    with pytest.raises(UnknownFailure) as caught:
        await watched.guard(error)()
    assert (caught.value.reason, caught.value.executed) == (Reason.OUTCOME_UNKNOWN, Executed.MAYBE)
    assert caught.value.__cause__ is error
    assert watched.ran == 3


async def test_retry_can_be_turned_off(watched: Watched) -> None:
    """`retry=False` is one attempt."""
    with pytest.raises(Unreachable) as caught:
        await watched.guard(ConnectionRefusedError(), retry=False)()
    assert caught.value.reason is Reason.CONNECT
    assert watched.ran == 1


async def test_reach_errors_of_the_body_pass_as_they_are(watched: Watched) -> None:
    """A body that raises a ReachError has said everything itself."""
    error = SchemaInvalid("no such account")
    with pytest.raises(SchemaInvalid) as caught:
        await watched.guard(error, idempotent=True)()
    assert caught.value is error
    wait = RateLimited("soon", retry_after_ms=10)
    assert await watched.guard(wait)() == "done"


async def test_the_deadline_ends_the_body(watched: Watched) -> None:
    """CALL-1: within `timeout_s` it is over; an idempotent body gets a second try inside it."""

    @reach.guard("order.query", timeout_s=0.3, idempotent=True, recorder=watched.recorder)
    async def slow() -> None:
        watched.ran += 1
        await asyncio.sleep(30)

    began = asyncio.get_running_loop().time()
    with pytest.raises(CallTimeout):
        await slow()
    assert asyncio.get_running_loop().time() - began < 1.0
    assert watched.ran == 2
    [record] = watched.records
    assert (record.outcome, record.reason) == ("failed", "DEADLINE")


async def test_a_body_never_outlives_what_surrounds_it(watched: Watched) -> None:
    """A round's deadline bounds the body, and what the body calls inherits the smaller one."""
    seen: list[float | None] = []

    @reach.guard("order.query", timeout_s=20, recorder=watched.recorder)
    async def look() -> None:
        seen.append(current().deadline)

    async with reach.round(timeout_s=0.5):
        outer = current().deadline
        await look()
    assert outer is not None
    assert seen[0] is not None
    assert seen[0] <= outer
    assert current().deadline is None


async def test_a_body_with_no_time_left_is_not_begun(watched: Watched) -> None:
    """Past the surrounding deadline: TIMEOUT, executed=no."""
    body = watched.guard()
    async with reach.round(timeout_s=0.01):
        await asyncio.sleep(0.02)
        with pytest.raises(CallTimeout) as caught:
            await body()
    assert caught.value.executed is Executed.NO
    assert watched.ran == 0


async def test_a_cancelled_body_has_its_record(watched: Watched) -> None:
    """Exactly one record for every outcome kind, cancelled included."""

    @reach.guard("order.query", recorder=watched.recorder)
    async def slow() -> None:
        await asyncio.sleep(30)

    task = asyncio.create_task(slow())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [(record.outcome, record.reason) for record in watched.records] == [("cancelled", "CANCELLED")]


def test_a_plain_function_is_guarded_in_its_own_thread(watched: Watched) -> None:
    """No loop is needed; retries wait in the thread; what is called inside sees the deadline."""
    failures = [ConnectionRefusedError()]
    seen: list[Any] = []

    @reach.guard("order.query", timeout_s=5, recorder=watched.recorder)
    def body(value: int) -> int:
        seen.append((threading.current_thread(), current().deadline is not None, current().chain))
        if failures:
            raise failures.pop()
        return value

    assert body(7) == 7
    assert seen == [(threading.current_thread(), True, ("order.query",))] * 2
    assert current().deadline is None
    assert body.reply(8).data == 8
    assert [record.retried for record in watched.records] == [True, False]

    @reach.guard("order.query", recorder=watched.recorder)
    def fails() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        fails()


async def test_a_plain_function_inside_a_loop_is_not_tried_twice(watched: Watched) -> None:
    """Waiting between attempts would block the loop."""

    @reach.guard("order.query", recorder=watched.recorder)
    def body() -> None:
        watched.ran += 1
        raise ConnectionRefusedError

    with pytest.raises(Unreachable):
        body()
    assert watched.ran == 1


def test_what_could_not_work_is_refused_at_decoration() -> None:
    """Names, options and generators."""

    async def stream() -> Any:
        yield 1

    with pytest.raises(NameRefused):
        reach.guard("Order.Query")
    with pytest.raises(ValueError, match="timeout_s is a positive number"):
        reach.guard("order.query", timeout_s=0)
    with pytest.raises(TypeError, match="is a generator, and a guard returns one result"):
        reach.guard("order.query")(stream)
