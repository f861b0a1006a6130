"""Seconds on a clock that goes on while the machine sleeps.

A lease that ran out during a laptop's sleep has run out; on the monotonic clock of Linux it would not have.
"""

from __future__ import annotations

import time
from typing import Final

_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Elsewhere than on Linux the monotonic clock counts sleep already."""


def boottime() -> float:
    """Give seconds since the machine was booted."""
    return time.clock_gettime(_CLOCK)
