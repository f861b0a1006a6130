"""Agents for tests with clients in other languages."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.fleet import Fleet


@pytest.fixture
async def fleet(system: Any, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Agents on the shared server; at its end nothing may be left of them."""
    fleet = Fleet(system, tmp_path)
    try:
        yield fleet
    finally:
        await fleet.close()
