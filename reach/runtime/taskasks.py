"""The questions of one task, and their answers.

A question is an event, and so is its answer, written by the worker once it fits what was asked for; whoever gave one
that does not fit is told, and the question stays. A task that is begun anew asks the same questions in the same
order, and gets at once what was answered before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError

from reach.errors import ReachError, SchemaInvalid, UpstreamRefusal
from reach.faults import Reason
from reach.registry import misfit, schemas
from reach.runtime.taskwriter import Fenced
from reach.wire.task import TaskState

if TYPE_CHECKING:
    from reach.runtime.taskrun import TaskRun
    from reach.wire.task import TaskOrder

Check = Callable[[Any], Any]


class Asks:
    """See the module. `resumed` says that there may be answers from before."""

    def __init__(self, run: TaskRun) -> None:
        self._run = run
        self._count = 0
        self._waiting: asyncio.Future[Any] | None = None
        self._question = ""
        self._event_id = ""
        self._check: Check = _anything
        self._turn = asyncio.Lock()
        self._before: dict[int, dict[str, Any]] | None = None
        self._taking = asyncio.Lock()

    @property
    def waiting(self) -> bool:
        """Whether a question is open."""
        return self._waiting is not None and not self._waiting.done()

    async def ask(self, question: str, schema: Any, timeout_s: float | None) -> Any:
        """Ask, and wait for the answer. One at a time; further ones wait for their turn."""
        check, published = _checked(schema)
        async with self._turn:
            self._count += 1
            known = (await self._answered()).get(self._count)
            if known is not None and known.get("question") == question:
                return check(known.get("answer"))
            told = {"question": question, "schema": published, "n": self._count}
            event = await self._run.say(
                TaskState.INPUT_REQUIRED, {key: value for key, value in told.items() if value is not None}
            )
            self._question, self._event_id, self._check = question, event.event_id, check
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._waiting
            finally:
                self._waiting = None

    async def take(self, order: TaskOrder) -> None:
        """Take an answer. Raises `ReachError` for one that comes too late, or that does not fit."""
        async with self._taking:
            waiting = self._waiting
            if waiting is None or waiting.done():
                raise _nothing_asked(self._run.task_id)
            stale = order.attempt is not None and order.attempt != self._run.attempt
            if stale or (order.event_id is not None and order.event_id != self._event_id):
                raise _nothing_asked(self._run.task_id)
            value = self._check(order.data)
            told = {"n": self._count, "question": self._question, "answer": order.data, "by": order.source}
            try:
                await self._run.say(TaskState.INPUT_RECEIVED, told)
            except Fenced:
                raise _nothing_asked(self._run.task_id) from None
            if not waiting.done():
                waiting.set_result(value)

    async def _answered(self) -> dict[int, dict[str, Any]]:
        """Read what was answered before this start, by number."""
        if self._before is None:
            self._before = {}
            run = self._run
            if run.resumed:
                answers = await run.worker.stream.since(
                    run.tenant, run.task_id, 0, state=TaskState.INPUT_RECEIVED
                )
                for entry in answers:
                    data = entry.event.data
                    if entry.event.run == run.writer.run and type(data) is dict:
                        self._before[data.get("n", 0)] = data
        return self._before


def _nothing_asked(task_id: str) -> ReachError:
    return UpstreamRefusal(
        f"task {task_id} waits for no such answer (any more): read its last event", reason=Reason.NOT_FOUND
    )


def _anything(value: Any) -> Any:
    return value


def _checked(schema: Any) -> tuple[Check, dict[str, Any] | None]:
    """Give what checks an answer, and what is published of it. Raises `TypeError` for what is no type."""
    if schema is None:
        return _anything, None
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(schema)
        published = schemas.given(adapter)
    except (PydanticSchemaGenerationError, PydanticUserError, NameError, TypeError) as error:
        raise TypeError(
            f"the schema of a question is a type, such as bool, a Literal or a pydantic model: {type(error).__name__}"
        ) from None

    def check(value: Any) -> Any:
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            problems = misfit.explain(error, value, schema=published).replace("the parameters", "the answer")
            raise SchemaInvalid(f"the answer does not fit the question: {problems}") from None

    return check, published
