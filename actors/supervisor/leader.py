"""Which of the supervisors leads: a key that one of them holds, and how long it may believe that it does.

The key lives two seconds and is renewed each half; who finds it free takes it by compare-and-set, and the sequence
of that write is the *term*. Every write to the routing table names the sequence of the latest renewal, so the
server refuses those of a former leader, whatever it still believes (design, section 5). This side of it decides
only what to do next: the clock and the answers come in, steps come out.

While a renewal is under way the sequence that it will have is not known, so nothing may be written (`guard` is
None); and an answer that does not come leaves in doubt whether it was lost or refused, so the key is looked at.

==========  ========  ======================================================================
ttl         2 s       design, section 5: a killed leader is replaced in 4 s at most
renewal     0.5 s     design, section 5: three may be lost
look        0.25 s    how often a follower looks whether the key is free
margin      0.25 s    how much sooner than the server a leader stops believing that it leads
patience    0.4 s     how long an answer is waited for
==========  ========  ======================================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

TTL_S: Final = 2.0
RENEW_S: Final = 0.5
LOOK_S: Final = 0.25
MARGIN_S: Final = 0.25
PATIENCE_S: Final = 0.4


class Seat(StrEnum):
    """What a supervisor is."""

    FOLLOWING = "following"
    TAKING = "taking"
    """It found the key free, and has asked for it."""
    LEADING = "leading"


MOVES: Final[dict[Seat, frozenset[Seat]]] = {
    Seat.FOLLOWING: frozenset({Seat.TAKING}),
    Seat.TAKING: frozenset({Seat.LEADING, Seat.FOLLOWING}),
    Seat.LEADING: frozenset({Seat.FOLLOWING}),
}
"""From where to where."""


@dataclass(frozen=True, slots=True)
class Look:
    """Read the key."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Write the key, if the last write to it has the sequence `expected`; 0 where there must be none."""

    expected: int


Step = Look | Hold


@dataclass(frozen=True, slots=True)
class Seen:
    """What the key holds: who has it (None where it is free), and the sequence of the last write to it."""

    holder: str | None
    sequence: int


class Election:
    """One supervisor's part in it. `name` is unique for each process and start."""

    __slots__ = (
        "_asked",
        "_asked_at",
        "_next_at",
        "_seat",
        "_sequence",
        "_sure",
        "_valid_until",
        "name",
        "term",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.term = 0
        self._seat = Seat.FOLLOWING
        self._sequence = 0
        self._sure = True
        self._asked: Step | None = None
        self._asked_at = -math.inf
        self._next_at = -math.inf
        self._valid_until = -math.inf

    @property
    def seat(self) -> Seat:
        """What this supervisor is, as of the last step."""
        return self._seat

    def leads(self, now: float) -> bool:
        """Whether it may act as leader at `now`."""
        return self._seat is Seat.LEADING and now < self._valid_until

    def guard(self, now: float) -> int | None:
        """Give the sequence that a write to the table must name; None while nothing may be written."""
        if not self.leads(now) or not self._sure or isinstance(self._asked, Hold):
            return None
        return self._sequence

    @property
    def last_sequence(self) -> int:
        """The sequence of the key as last known: what giving it up must name."""
        return self._sequence

    # -- what to do -----------------------------------------------------------------------------------

    def step(self, now: float) -> Step | None:
        """Give what to do now; to be asked often (each 50 ms)."""
        if self._seat is Seat.LEADING and now >= self._valid_until:
            self._fall(now)
        if self._asked is not None:
            if now - self._asked_at < PATIENCE_S:
                return None
            self._unanswered()
        if self._seat is Seat.LEADING and not self._sure:
            return self._ask(Look(), now)
        if now < self._next_at:
            return None
        return self._ask(Look() if self._seat is Seat.FOLLOWING else Hold(self._sequence), now)

    def doubt(self) -> None:
        """A write to the table was refused: look whether the key is still ours, before anything else."""
        self._sure = False

    def give_up(self, now: float) -> None:
        """Lead no more."""
        if self._seat is not Seat.FOLLOWING:
            self._fall(now)

    # -- what came of it ------------------------------------------------------------------------------

    def looked(self, seen: Seen, now: float) -> Step | None:
        """Take in what the key holds; gives what to do at once, if anything."""
        asked_at, expected = self._asked_at, isinstance(self._asked, Look)
        if not expected:
            return None
        self._asked = None
        self._next_at = now + LOOK_S
        if seen.holder == self.name:
            return self._found_ours(seen.sequence, asked_at)
        if self._seat is Seat.LEADING:
            self._fall(now)
        if seen.holder is not None:
            return None
        self._move(Seat.TAKING)
        return self._ask(Hold(seen.sequence), now)

    def held(self, sequence: int, now: float) -> bool:
        """Take in that the key was written; whether this supervisor has just become leader."""
        if not isinstance(self._asked, Hold):
            return False
        self._asked = None
        self._sequence = sequence
        self._valid_until = self._asked_at + TTL_S - MARGIN_S
        self._next_at = self._asked_at + RENEW_S
        if self._seat is Seat.LEADING:
            return False
        self._move(Seat.LEADING)
        self.term, self._sure = sequence, True
        return now < self._valid_until

    def refused(self, now: float) -> None:
        """Take in that somebody else wrote the key since; or we did, and were not told."""
        if not isinstance(self._asked, Hold):
            return
        self._asked = None
        if self._seat is Seat.TAKING:
            self._fall(now)
        else:
            self._sure = False

    # -- inside ---------------------------------------------------------------------------------------

    def _ask(self, step: Step, now: float) -> Step:
        self._asked, self._asked_at = step, now
        return step

    def _unanswered(self) -> None:
        if isinstance(self._asked, Hold):
            self._sure = False
            if self._seat is Seat.TAKING:
                self._move(Seat.FOLLOWING)
        self._asked = None
        self._next_at = -math.inf

    def _found_ours(self, sequence: int, asked_at: float) -> Step | None:
        """What we took for lost was only not told. A key that is ours from an unanswered taking is given back."""
        if self._seat is Seat.LEADING:
            self._sequence, self._sure = sequence, True
            self._next_at = -math.inf
            return None
        self._move(Seat.TAKING)
        return self._ask(Hold(sequence), asked_at)

    def _fall(self, now: float) -> None:
        self._move(Seat.FOLLOWING)
        self._sure, self._asked = True, None
        self._next_at = now + LOOK_S

    def _move(self, seat: Seat) -> None:
        if seat not in MOVES[self._seat]:
            raise ValueError(f"a supervisor cannot go from {self._seat} to {seat}")
        self._seat = seat
