"""What an agent says of itself: whether it takes calls, and whether it is at its best (behaviour LIFE-5).

It may be said from anywhere in the program, other threads included; whoever sends heartbeats hears of it at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Condition:
    """One agent's word, for all of its instances in this process."""

    __slots__ = ("_degraded", "_hearers", "_ready")

    def __init__(self) -> None:
        self._ready, self._degraded = True, False
        self._hearers: list[Callable[[], object]] = []

    @property
    def ready(self) -> bool:
        """Whether it takes calls: without, it gets none, though it were the only one."""
        return self._ready

    @ready.setter
    def ready(self, ready: bool) -> None:
        if ready is not self._ready:
            self._ready = ready
            self._tell()

    @property
    def degraded(self) -> bool:
        """Whether it serves less well than usual: it gets a tenth of its share."""
        return self._degraded

    @degraded.setter
    def degraded(self, degraded: bool) -> None:
        if degraded is not self._degraded:
            self._degraded = degraded
            self._tell()

    @property
    def health(self) -> str:
        """The word for it on the wire."""
        return "degraded" if self._degraded else "healthy"

    def on_change(self, hearer: Callable[[], object]) -> None:
        """Have `hearer` called at each change, in the thread that makes it."""
        self._hearers.append(hearer)

    def off_change(self, hearer: Callable[[], object]) -> None:
        """Call it no more."""
        if hearer in self._hearers:
            self._hearers.remove(hearer)

    def _tell(self) -> None:
        for hearer in tuple(self._hearers):
            hearer()
