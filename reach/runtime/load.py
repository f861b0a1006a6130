"""How much an instance has to do: what its heartbeats carry (behaviour LIFE-1).

The processor time is this process's own, as a share of the processors that it may use; a loop that is late shows
by how much, at worst, a timer came after its time.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")
_TIMER_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Load:
    """Since the last look. `cpu` is a share from 0 to 1 of the processors that the process may use."""

    cpu: float
    rss_bytes: int
    loop_lag_ms: float


class LoadMeter:
    """Measures this process. `start` it in a running loop, and `stop` it."""

    __slots__ = ("_cpu_s", "_due", "_lag_s", "_timer", "_wall_s")

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._lag_s = 0.0
        self._wall_s, self._cpu_s = time.monotonic(), time.process_time()

    def start(self) -> None:
        """Watch the loop from now on."""
        if self._timer is None:
            self._set()

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def peek(self) -> Load:
        """Give what there was since the last look, which goes on."""
        return self._since(time.monotonic(), time.process_time())

    def look(self) -> Load:
        """Give what there was since the last look, and begin anew."""
        wall_s, cpu_s = time.monotonic(), time.process_time()
        found = self._since(wall_s, cpu_s)
        self._wall_s, self._cpu_s, self._lag_s = wall_s, cpu_s, 0.0
        return found

    def _since(self, wall_s: float, cpu_s: float) -> Load:
        passed_s = max(wall_s - self._wall_s, 1e-6)
        cpu = (cpu_s - self._cpu_s) / passed_s / processors()
        lag_s = max(self._lag_s, wall_s - self._due if self._timer is not None else 0.0)
        return Load(round(min(max(cpu, 0.0), 1.0), 3), rss_bytes(), round(max(0.0, lag_s) * 1000, 1))

    def _set(self) -> None:
        self._due = time.monotonic() + _TIMER_S
        self._timer = asyncio.get_running_loop().call_later(_TIMER_S, self._rang)

    def _rang(self) -> None:
        self._lag_s = max(self._lag_s, time.monotonic() - self._due)
        self._set()


def processors() -> int:
    """Give how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def rss_bytes() -> int:
    """Give the memory that this process holds now; where the system does not say, the most that it ever held."""
    try:
        return int(_STATM.read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
