"""Which instance of a lane fails while its neighbours do well.

A lane's breaker judges all of it; one bad instance of three would close the door of the two good ones. So failures
are counted for each instance too, from its first one on, and its successes beside them; an instance that mostly fails
is an *outlier*, to be avoided for a while, and what fails there no longer speaks against the lane. Nothing is counted
while nothing fails. The idea is Envoy's outlier detection.

==================  ========  ===============================================================================
failures            5         few enough to come before the breaker's minimum of 20 calls, when a third fails
share               50 %      of its own calls since its first failure: a lane that fails as a whole has no outlier
memory              10 s      after its last failure an instance starts afresh
==================  ========  ===============================================================================
"""

from __future__ import annotations

from typing import Final

FAILURES: Final = 5
SHARE: Final = 0.5
MEMORY_S: Final = 10.0
MAX_SUSPECTS: Final = 1_000
"""Instances that are counted at a time; beyond it all start afresh."""


class _Suspect:
    __slots__ = ("failed", "fine", "last")

    def __init__(self, now: float) -> None:
        self.failed = 0
        self.fine = 0
        self.last = now


class Outliers:
    """The instances of one lane of which something failed lately. `none` says that there are none."""

    __slots__ = ("_suspects", "none")

    def __init__(self) -> None:
        self._suspects: dict[str, _Suspect] = {}
        self.none = True

    def failed(self, instance: str, now: float) -> bool:
        """Count a failure at `now` seconds; whether the instance is an outlier, after which it starts afresh."""
        suspect = self._suspects.get(instance)
        if suspect is None or now - suspect.last > MEMORY_S:
            if suspect is None and len(self._suspects) >= MAX_SUSPECTS:
                self._suspects.clear()
            suspect = self._suspects[instance] = _Suspect(now)
            self.none = False
        suspect.failed += 1
        suspect.last = now
        if suspect.failed < FAILURES or suspect.failed <= (suspect.failed + suspect.fine) * SHARE:
            return False
        self._forget(instance)
        return True

    def succeeded(self, instance: str, now: float) -> None:
        """Count a success. To be asked for only while there are suspects."""
        suspect = self._suspects.get(instance)
        if suspect is None:
            return
        if now - suspect.last > MEMORY_S:
            self._forget(instance)
        else:
            suspect.fine += 1

    def _forget(self, instance: str) -> None:
        del self._suspects[instance]
        self.none = not self._suspects
