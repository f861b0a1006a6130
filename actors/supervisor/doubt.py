"""Instances that may be hung: asked, steered around, fenced (design, section 5; behaviour LIFE-4).

=========  ==========================================================================  =======================
state      since                                                                       what is done
=========  ==========================================================================  =======================
asked      a caller suspects its lane: it was sent a ping                              nothing yet
steered    it was silent for a second                                                  it gets no more calls
fenced     it was silent for ten                                                       its connection is ended,
                                                                                       each ten seconds anew
=========  ==========================================================================  =======================

An answer ends the doubt. A heartbeat does not: it may have lain in a socket since before the silence. A suspicion
costs a few pings at most: who answered a moment ago, or is being asked, is not asked again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

STEER_AFTER_S: Final = 1.0
FENCE_AFTER_S: Final = 10.0
"""Seconds of silence (design, section 5)."""

ASK_EACH_S: Final = 0.25
"""How often an instance in doubt is asked: one lost ping must not decide."""

TRUST_S: Final = 0.25
"""For how long an answer speaks for an instance."""

ABSENT_S: Final = 0.5
"""How long nobody may listen on an instance's control subject before it is gone: as long as the sentinel waits."""

MAX_KNOWN: Final = 65_536


class State(StrEnum):
    """How far the doubt has gone."""

    ASKED = "asked"
    STEERED = "steered"
    FENCED = "fenced"


MOVES: Final[dict[State, frozenset[State]]] = {
    State.ASKED: frozenset({State.STEERED}),
    State.STEERED: frozenset({State.FENCED}),
    State.FENCED: frozenset(),
}
"""From where to where; a sign of life ends every state."""


class Deed(StrEnum):
    """What is to be done about an instance."""

    PING = "ping"
    STEER = "steer"
    FENCE = "fence"


@dataclass(slots=True)
class _Case:
    since: float
    asked_at: float
    state: State = State.ASKED
    fenced_at: float = -math.inf

    def move(self, state: State) -> None:
        if state not in MOVES[self.state]:
            raise ValueError(f"a doubt cannot go from {self.state} to {state}")
        self.state = state


class Doubts:
    """All instances that are in doubt."""

    __slots__ = ("_cases", "_heard")

    def __init__(self) -> None:
        self._cases: dict[str, _Case] = {}
        self._heard: dict[str, float] = {}

    def state(self, instance: str) -> State | None:
        """Give how far the doubt about an instance has gone; None where there is none."""
        case = self._cases.get(instance)
        return None if case is None else case.state

    def since(self, instance: str) -> float | None:
        """Give when it was first asked and did not answer."""
        case = self._cases.get(instance)
        return None if case is None else case.since

    def suspect(self, instances: Iterable[str], now: float) -> list[str]:
        """Give whom to ping, because a caller of theirs was left waiting; who has just answered is asked soon."""
        asked = []
        for instance in instances:
            if instance in self._cases:
                continue
            trusted_until = self._heard.get(instance, -math.inf) + TRUST_S
            if now < trusted_until:
                self._cases[instance] = _Case(trusted_until, trusted_until - ASK_EACH_S)
            else:
                self._cases[instance] = _Case(now, now)
                asked.append(instance)
        return asked

    def alive(self, instance: str, now: float) -> State | None:
        """Take in a sign of life; gives the doubt that it ended."""
        if len(self._heard) >= MAX_KNOWN:
            self._heard.clear()
        self._heard[instance] = now
        return self.forget(instance)

    def absent(self, instance: str, now: float) -> bool:
        """Take in that nobody listens where it was asked; whether that has been so for too long."""
        case = self._cases.get(instance)
        return case is not None and now - case.since >= ABSENT_S

    def adopt(self, instance: str, now: float) -> None:
        """Go on from a table that says that it is steered around."""
        self._cases[instance] = _Case(now - STEER_AFTER_S, now - ASK_EACH_S, State.STEERED)

    def forget(self, instance: str) -> State | None:
        """Ask no more: it is known to be gone, or well."""
        case = self._cases.pop(instance, None)
        return None if case is None else case.state

    def due(self, now: float) -> list[tuple[Deed, str]]:
        """Give what is to be done now."""
        found: list[tuple[Deed, str]] = []
        for instance, case in self._cases.items():
            silent_s = now - case.since
            if case.state is State.ASKED and silent_s >= STEER_AFTER_S:
                case.move(State.STEERED)
                found.append((Deed.STEER, instance))
            if case.state is State.STEERED and silent_s >= FENCE_AFTER_S:
                case.move(State.FENCED)
            if case.state is State.FENCED and now - case.fenced_at >= FENCE_AFTER_S:
                case.fenced_at = now
                found.append((Deed.FENCE, instance))
            if now - case.asked_at >= ASK_EACH_S:
                case.asked_at = now
                found.append((Deed.PING, instance))
        return found
