"""Testing an agent of one's own: a real system for each test, started and cleaned up by fixtures.

Run:  pytest examples/test_greeter.py

`reach_agent`, `reach_bus` and `reach_harness` come with Reach; anyio's plugin runs the async tests.
"""
# ruff: noqa: S101 - asserting is how pytest asks

from typing import Any

import pytest

import reach
from examples.greeter import agent

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on asyncio."""
    return "asyncio"


async def test_greets_by_name(reach_agent: Any, reach_bus: reach.Bus) -> None:
    """The result is what the capability promises."""
    await reach_agent(agent)
    reply = await reach_bus.request("greet.hello", {"name": "Ada"})
    assert reply.unwrap() == "Hello, Ada!"


async def test_needs_a_name(reach_agent: Any, reach_bus: reach.Bus, reach_harness: Any) -> None:
    """A call without a name is refused, told as such, and recorded once."""
    await reach_agent(agent)
    with pytest.raises(reach.SchemaInvalid):
        (await reach_bus.request("greet.hello", {})).unwrap()
    assert [record.reason for record in reach_harness.records] == ["SCHEMA"]
