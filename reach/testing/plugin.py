"""The pytest plugin: a real system for each test, under whatever runs the project's async tests.

Fixtures: `reach_server` (one real NATS a session), `reach_harness` (one isolated system a test), `reach_bus` (a
bus into it), `reach_agent` (serves an agent until the test ends), `manual_clock`. None of them is an async
fixture, since anyio and pytest-asyncio each run only their own kind; instead the async test itself is wrapped:
bus and agents live in the loop and the task of the test, and end with it. Nothing of Reach is imported before
a fixture is used, for this module is loaded in every project of an environment.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from reach.call.client import Bus
    from reach.runtime.agent import Agent
    from reach.runtime.instance import Instance
    from reach.testing.clock import ManualClock
    from reach.testing.harness import Harness
    from reach.testing.server import SharedServer


@pytest.fixture(scope="session")
def reach_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServer]:
    """One real NATS server for the whole session, on a free port, in a temporary folder."""
    from reach.testing.server import SharedServer  # noqa: PLC0415 - see above

    with SharedServer(tmp_path_factory.mktemp("reach")) as server:
        yield server


@pytest.fixture
def reach_harness(
    request: pytest.FixtureRequest, reach_server: SharedServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Harness]:
    """A system of this test's own.

    `REACH_HOME` leads there and other settings of Reach are taken out of the environment, so code under test
    may call `reach.connect()` or start `reach …` in another process as it always does.
    """
    from reach.testing.harness import Harness  # noqa: PLC0415 - see above

    with reach_server.account() as home:
        harness = Harness(home)
        for name in [name for name in os.environ if name.startswith("REACH_")]:
            monkeypatch.delenv(name)
        for name, value in harness.env.items():
            monkeypatch.setenv(name, value)
        _wrap(request.node, harness)
        yield harness


@pytest.fixture
def reach_bus(request: pytest.FixtureRequest, reach_harness: Harness) -> Bus:
    """A bus into this test's system, connected while the async test runs."""
    if not inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        pytest.fail("reach_bus is for `async def` tests: a bus lives in an event loop", pytrace=False)
    return _Later(reach_harness)  # type: ignore[return-value]  # the bus itself takes its place in `_wrap`


@pytest.fixture
def reach_agent(reach_harness: Harness) -> Callable[[Agent], Awaitable[Instance]]:
    """Serve an agent until the test ends.

    Used as `instance = await reach_agent(agent)`; it takes requests from then on.
    """
    return reach_harness.serve


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock that stands still until the test moves it."""
    from reach.testing.clock import ManualClock  # noqa: PLC0415 - see above

    return ManualClock()


class _Later:
    """Stands for the bus until the test begins; says so to fixtures that look at it earlier."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(
            f"reach_bus.{name}: the bus is connected when its test begins, and not yet. "
            "In a fixture write `async with reach_harness.bus() as bus:`"
        )


def _wrap(item: Any, harness: Harness) -> None:
    """Let an async test run inside its harness, whichever plugin runs it."""
    test = getattr(item, "obj", None)
    if not inspect.iscoroutinefunction(test):
        return

    @functools.wraps(test)
    async def run(**arguments: Any) -> None:
        _insist_on_asyncio()
        async with harness:
            for name, value in arguments.items():
                if isinstance(value, _Later):
                    arguments[name] = await value.harness.held_bus()
            await test(**arguments)

    item.obj = run


def _insist_on_asyncio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "Reach runs on asyncio, because nats-py does. With anyio's plugin, choose it by a fixture "
            "`anyio_backend` that returns 'asyncio'"
        ) from None
