"""When an instance has too much to do, and when it is well again (behaviour LIFE-5).

Over any of its limits it is busy; it stays so until all of them are below their lower marks, so that an instance on
the edge does not come and go. An instance judges itself and says so; the supervisor judges by its heartbeats too,
since a loop that hangs cannot.

==============  =============  =============  ==============================================================
measure         busy over      well below     of
==============  =============  =============  ==============================================================
cpu             80 %           60 %           the processors that its process may use
queue           100            50             requests that wait for a place
rss             none           90 % of it     bytes; only where a limit is set
==============  =============  =============  ==============================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLimits:
    """See the module. None turns a measure off."""

    cpu: float | None = 0.80
    cpu_well: float = 0.60
    queue: int | None = 100
    queue_well: int = 50
    rss_bytes: int | None = None
    rss_well_share: float = 0.90


LIMITS: Final = LoadLimits()
"""LIFE-5's."""


def judge(
    *, cpu: float, queue: int, rss_bytes: int, was_busy: bool, limits: LoadLimits = LIMITS
) -> str | None:
    """Say why an instance is busy, in a few words; None when it is not.

    Args:
        cpu: Share of its processors that it used lately, 0 to 1.
        queue: Requests that wait for a place.
        rss_bytes: Memory that it holds.
        was_busy: What was judged the last time.
        limits: Over which it is busy.
    """
    if limits.cpu is not None and cpu > (limits.cpu_well if was_busy else limits.cpu):
        return f"cpu at {cpu:.0%}"
    if limits.queue is not None and queue > (limits.queue_well if was_busy else limits.queue):
        return f"{queue} requests wait"
    if limits.rss_bytes is not None:
        bound = limits.rss_bytes * limits.rss_well_share if was_busy else limits.rss_bytes
        if rss_bytes > bound:
            return f"{rss_bytes / 1e6:.0f} MB of memory"
    return None
