"""Testing what is built on Reach: a real system for each test, and a clock that tests move.

The pytest plugin (`reach.testing.plugin`, found by itself once Reach is installed) has them as fixtures.
Names are imported on first use: the plugin is loaded in every pytest run of an environment.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reach.testing.clock import ManualClock
    from reach.testing.harness import Harness
    from reach.testing.server import SharedServer

__all__ = ["Harness", "ManualClock", "SharedServer"]

_HOME = {
    "Harness": "reach.testing.harness",
    "ManualClock": "reach.testing.clock",
    "SharedServer": "reach.testing.server",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'reach.testing' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
