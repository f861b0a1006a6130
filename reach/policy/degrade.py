"""When a caller's user is told that answers are not the usual ones, and when the people on duty are (BREAK-6).

Counted for each caller and capability: the third degraded reply in a row carries one sentence for the end user, and
then none for ten minutes, however it goes on. When it lasts, there is an alert, and again while it goes on. One usual
reply ends a run. Pairs that are well are not remembered; they cost a look at an empty map.

================  =========================  ================================================
what              number                     where it comes from
================  =========================  ================================================
a run             3 degraded replies         BREAK-6
notices           one in 10 min              BREAK-6
it lasts          60 s from its first reply  ours: as long as a breaker's window (BREAK-1)
alerts            one in 5 min               SEE-9's time for merging
pairs remembered  10 000                     ours: a bound; the longest silent is forgotten
================  =========================  ================================================
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

RUN: Final = 3
NOTICE_EVERY_S: Final = 600.0
LASTS_S: Final = 60.0
ALERT_EVERY_S: Final = 300.0
MAX_PAIRS: Final = 10_000

NOTICE_EN: Final = (
    "Part of this answer may be simpler or older than usual: a service is not fully available right now."
)
NOTICE_ZH: Final = "由于某项服务暂时未能完全可用，本次答复的部分内容可能比平时更简略或不是最新。"


def notice(language: str = "en") -> str:
    """Give the end user's sentence in `language` (`en`, `zh`, or a longer tag such as `zh-CN`); English otherwise."""
    return NOTICE_ZH if language.lower().startswith("zh") else NOTICE_EN


@dataclass(frozen=True, slots=True)
class Due:
    """What is due with this reply: a `notice` for the end user, an `alert` for the people on duty, or both.

    `run` counts the degraded replies in a row, of which the first was `since_s` seconds ago.
    """

    notice: bool
    alert: bool
    run: int
    since_s: float


class _Pair:
    __slots__ = ("alerted_at", "began_at", "noticed_at", "run")

    def __init__(self) -> None:
        self.run = 0
        self.began_at = 0.0
        self.noticed_at = -math.inf
        self.alerted_at = -math.inf


class DegradeBook:
    """The runs of degraded replies of all callers and capabilities of one process."""

    __slots__ = ("_max_pairs", "_pairs")

    def __init__(self, *, max_pairs: int = MAX_PAIRS) -> None:
        if max_pairs < 1:
            raise ValueError(f"max_pairs is 1 or more, not {max_pairs}")
        self._max_pairs = max_pairs
        self._pairs: OrderedDict[tuple[str, str], _Pair] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pairs)

    def replied(self, caller: str, capability: str, *, now: float, degraded: bool) -> Due | None:
        """Count a reply at `now` seconds; gives what is due with it, None for nothing."""
        if degraded:
            return self._degraded((caller, capability), now)
        if self._pairs:
            self._usual((caller, capability), now)
        return None

    def _usual(self, key: tuple[str, str], now: float) -> None:
        pair = self._pairs.get(key)
        if pair is None:
            return
        if now - pair.noticed_at < NOTICE_EVERY_S:
            pair.run = 0  # That a notice was given has to be remembered.
        else:
            del self._pairs[key]

    def _degraded(self, key: tuple[str, str], now: float) -> Due | None:
        pair = self._pairs.get(key)
        if pair is None:
            if len(self._pairs) >= self._max_pairs:
                self._pairs.popitem(last=False)
            pair = self._pairs[key] = _Pair()
        else:
            self._pairs.move_to_end(key)
        if not pair.run:
            pair.began_at = now
            pair.alerted_at = -math.inf
        pair.run += 1
        if pair.run < RUN:
            return None
        tells = now - pair.noticed_at >= NOTICE_EVERY_S
        if tells:
            pair.noticed_at = now
        since_s = now - pair.began_at
        alerts = since_s >= LASTS_S and now - pair.alerted_at >= ALERT_EVERY_S
        if alerts:
            pair.alerted_at = now
        return Due(notice=tells, alert=alerts, run=pair.run, since_s=since_s) if tells or alerts else None
