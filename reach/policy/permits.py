"""What a breaker answers, and the probes of one half-open round.

A round lets a fixed number of calls through and counts what became of them (behaviour BREAK-3). Each probe has
a permit; each outcome gives its permit back, once, whatever it was; a permit whose holder is never heard of
ends with its call's deadline, and all of them with the round. So a place cannot leak: a cancelled probe, or one
that says nothing about the lane, only makes room for another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Pass:
    """The call may go."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The call may not go; worth trying in `retry_after_s` seconds, None where only an operator knows."""

    retry_after_s: float | None
    why: str


@dataclass(eq=False, slots=True)
class Permit:
    """The call may go as a probe; its outcome, of whatever kind, is recorded with this permit.

    From `expires_at` on (seconds) its place is free for another probe; its outcome still counts, if it comes
    while the round lasts.
    """

    expires_at: float
    round: Round
    spent: bool = False


Verdict = Pass | Permit | Refused

PASS: Final = Pass()


class Round:
    """One half-open round: at most `quota` probes are under way or judged, until `ends_at`.

    `judged` outcomes said something about the lane, and `bad` of them spoke against it.
    """

    __slots__ = ("_held", "bad", "ends_at", "judged", "quota")

    def __init__(self, *, quota: int, ends_at: float) -> None:
        self.quota = quota
        self.ends_at = ends_at
        self.judged = 0
        self.bad = 0
        self._held: list[Permit] = []

    def held(self, now: float) -> int:
        """Count the permits that are out and have not expired."""
        self._held = [permit for permit in self._held if permit.expires_at > now]
        return len(self._held)

    def permit(self, now: float, *, expires_at: float) -> Permit | None:
        """Give a permit to a call with this deadline; None when all places are taken."""
        if self.held(now) + self.judged >= self.quota:
            return None
        permit = Permit(min(expires_at, self.ends_at), self)
        self._held.append(permit)
        return permit

    def give_back(self, permit: Permit) -> bool:
        """Free the permit's place; False if that was done before, or it is another round's."""
        if permit.spent or permit.round is not self:
            return False
        permit.spent = True
        if permit in self._held:
            self._held.remove(permit)
        return True

    def count(self, *, bad: bool) -> None:
        """Judge one probe."""
        self.judged += 1
        if bad:
            self.bad += 1
