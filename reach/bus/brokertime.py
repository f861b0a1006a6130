"""What time it is at the broker.

`expires_at` must mean the same to a caller and an agent whose clocks differ, so both count in the broker's time:
each client learns its own offset from one round trip on every new link (`$SYS.REQ.USER.INFO` answers with the
server's clock), and again whenever it has a reason to doubt it: our clock was set, this machine slept, or somebody
called something stale. Where the broker does not tell, the offset stays what it was, at first zero.
Prior art: Cristian's algorithm (1989); half the round trip is the error's bound.
"""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from reach.bus.framing import Delivery
    from reach.bus.internals import NatsLink

SUBJECT: Final = "$SYS.REQ.USER.INFO"

MAX_ROUND_TRIP_S: Final = 0.5
"""A slower answer says too little about the moment in which it was given."""

JUMP_S: Final = 0.25
"""A wall clock that has moved by more than this against the steady one was set, or this machine slept."""

COMPARE_S: Final = 0.05
"""How often the wall clock is compared with the steady one by those who stamp requests."""

DOUBT_S: Final = 1.0
"""The broker is asked at most this often because of a doubt."""

_FRACTION: Final = re.compile(r"(\.\d{6})\d*")


class BrokerTime:
    """Offset between this machine's wall clock and the broker's."""

    __slots__ = ("_asked", "_asked_wall", "_compared", "_gap_s", "_inbox", "_link", "known", "offset_ms")

    def __init__(self) -> None:
        self.offset_ms = 0
        """Milliseconds to add to our wall clock to get the broker's."""
        self.known = False
        """Whether any server has told its time yet."""
        self._asked = 0.0
        self._asked_wall = 0.0
        self._compared = 0.0
        self._gap_s = time.time() - monotonic()
        self._link: NatsLink | None = None
        self._inbox = ""

    def now_ms(self, now: float | None = None) -> int:
        """Give the broker's time in epoch milliseconds, as far as it is known; `now` is loop time, if at hand."""
        wall = time.time()
        if abs(wall - (monotonic() if now is None else now) - self._gap_s) > JUMP_S:
            self.doubt()
        return int(wall * 1000) + self.offset_ms

    def about_ms(self, now: float) -> int:
        """Give the same from loop time `now` alone, for those who look often: the clocks are compared now and then."""
        if now - self._compared > COMPARE_S:
            self._compared = now
            return self.now_ms(now)
        return int((now + self._gap_s) * 1000) + self.offset_ms

    def doubt(self) -> None:
        """Ask once more, unless that was done just now: what we take for the broker's time may be wrong."""
        if self._link is not None and self._link.is_up and monotonic() - self._asked > DOUBT_S:
            self.ask(self._link, self._inbox)

    def ask(self, link: NatsLink, inbox: str) -> None:
        """Ask the server of a link; the answer comes when it comes."""
        self._link, self._inbox = link, inbox

        def told(delivery: Delivery) -> None:
            self.answered(delivery.data)
            link.unlisten(sid)
            link.forget(sid)

        sid = link.listen(inbox, "", told)
        self.asked()
        link.send(SUBJECT, inbox, b"")

    def asked(self) -> None:
        """Note the moment in which the broker is asked."""
        self._asked = monotonic()
        self._asked_wall = time.time()
        self._gap_s = self._asked_wall - self._asked

    def answered(self, data: bytes) -> bool:
        """Learn from the broker's answer; whether it could be used."""
        round_trip_s = monotonic() - self._asked
        if round_trip_s > MAX_ROUND_TRIP_S:
            return False
        try:
            told = json.loads(data)["server"]["time"]
            there = datetime.fromisoformat(_FRACTION.sub(r"\1", told))
        except (ValueError, KeyError, TypeError):
            return False
        if there.tzinfo is None:
            there = there.replace(tzinfo=UTC)
        self.offset_ms = round((there.timestamp() - self._asked_wall - round_trip_s / 2) * 1000)
        self.known = True
        return True
