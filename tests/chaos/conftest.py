"""Agents and callers for tests of what goes wrong."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.stress_rig import Rig
from tests.conftest import System
from tests.runtime.fleet import Fleet


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """One server for the tests in this folder: their platforms leave a table, which other tests do not expect."""
    running = System(tmp_path_factory.mktemp("chaos"))
    running.provision()
    yield running
    running.server.stop()


@pytest.fixture
async def fleet(system: Any, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Agents and callers on the shared server; at its end nothing may be left of them."""
    fleet = Fleet(system, tmp_path)
    try:
        yield fleet
    finally:
        await fleet.close()


@pytest.fixture
async def rig(system: Any, tmp_path: Path) -> AsyncIterator[Rig]:
    """Agents as programs that take orders, and the log of their effects, on the shared server."""
    rig = Rig(system, tmp_path)
    try:
        yield rig
    finally:
        await rig.close()


@pytest.fixture
async def own_rig(own_system: Any, tmp_path: Path) -> AsyncIterator[Rig]:
    """The same on a server of the test's own."""
    rig = Rig(own_system, tmp_path)
    try:
        yield rig
    finally:
        await rig.close()
