"""Who is asking, and within what."""

import asyncio

import pytest

from reach.call.context import context, current, round_of_calls
from reach.errors import NameRefused


def test_context_sets_and_restores() -> None:
    """`reach.context` holds inside its block only, and inner blocks add to outer ones."""
    with context(agent_id="checker", task_id="close-1"):
        with context(session_id="s-1"):
            inner = current()
        outer = current()
    assert (inner.agent_id, inner.task_id, inner.session_id) == ("checker", "close-1", "s-1")
    assert (outer.agent_id, outer.session_id) == ("checker", None)
    assert current().agent_id is None


def test_context_refuses_what_is_no_token() -> None:
    """CALL-9: an id that could not be part of a subject is refused where it is set."""
    with pytest.raises(NameRefused, match="task_id"), context(task_id="a b"):
        pass


async def test_tasks_inherit_the_context() -> None:
    """CALL-4: a task started inside a context asks in its name."""
    with context(agent_id="checker"):
        task = asyncio.create_task(_who())
    assert await task == "checker"


async def _who() -> str | None:
    return current().agent_id


async def test_an_inner_round_never_outlasts_an_outer_one() -> None:
    """CALL-1: a round inside a round may be shorter, never longer."""
    async with round_of_calls(timeout_s=1):
        outer = current().deadline
        async with round_of_calls(timeout_s=100):
            assert current().deadline == outer
        async with round_of_calls(timeout_s=0.5):
            assert current().deadline < outer


async def test_a_round_gives_up_what_is_unfinished_at_its_end() -> None:
    """CALL-1: leaving a round ends every call that entered it and did not leave."""
    given_up: list[str] = []
    async with round_of_calls() as this:
        this.enter("done", lambda: given_up.append("done"))
        this.enter("open", lambda: given_up.append("open"))
        this.leave("done")
    assert given_up == ["open"]


async def test_a_round_needs_time() -> None:
    """A round without time is a mistake, said as one."""
    with pytest.raises(ValueError, match="positive timeout_s"):
        async with round_of_calls(timeout_s=0):
            pass
