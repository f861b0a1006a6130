"""The rules of callbacks: what a delivery is, what an answer means, when it is tried again (TASK-7).

One event that a callback is told of, the task's end as a rule, is one delivery. Its id is the event's, the same over
all tries, so a receiver that gets it twice knows. Only a 2xx is an acknowledgement: a redirect is a failure, since the
address that was given is the one that is signed for; 410 says that nobody wants these any more, and turns the address
off.

======================  ======================================  ===============================================
what                    number                                  where it comes from
======================  ======================================  ===============================================
time for one try        15 s                                    TASK-7; Standard Webhooks: 15 to 30 s
tries after the first   5 s, 5 min, 30 min, 2, 5, 10, 14, 20 h  TASK-7, and the schedule of Standard Webhooks
======================  ======================================  ===============================================
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct, field

TIMEOUT_S: Final = 15.0
AGAIN_S: Final = (5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0)
"""Seconds from the end of each try to the next one."""

LEASE_S: Final = 60.0
"""Whoever tries holds the delivery for so long; one that died in between is followed by the next try."""

GONE: Final = 410
_OK: Final = range(200, 300)
_REDIRECT: Final = range(300, 400)


class Standing(StrEnum):
    """Where a delivery stands."""

    PENDING = "pending"
    DELIVERED = "delivered"
    EXHAUSTED = "exhausted"
    REFUSED = "refused"
    DISABLED = "disabled"


MOVES: Final = {
    Standing.PENDING: frozenset(Standing),
    # By an operator's replay alone.
    Standing.DELIVERED: frozenset({Standing.PENDING}),
    Standing.EXHAUSTED: frozenset({Standing.PENDING}),
    Standing.REFUSED: frozenset({Standing.PENDING}),
    Standing.DISABLED: frozenset({Standing.PENDING}),
}
"""Which standing may follow which."""


class Try(Struct, kw_only=True, omit_defaults=True):
    """One try: when (epoch ms), the HTTP status or what went wrong in its place, and how long it took."""

    at: int
    status: int | None = None
    error: str | None = None
    took_ms: int = 0


class Delivery(Struct, kw_only=True, omit_defaults=True):
    """One callback that is owed, as it stands in the ledger. `sequence` is where the event is that it tells of."""

    id: str
    tenant: str
    task_id: str
    capability: str
    state: str
    url: str
    sequence: int
    standing: Standing = Standing.PENDING
    count: int = 0
    """Tries that were begun since it was owed, or replayed."""
    next_at: int = 0
    tries: list[Try] = field(default_factory=list)

    def to_map(self) -> dict[str, Any]:
        """Give what is told of it."""
        told: dict[str, Any] = msgspec.to_builtins(self)
        return {**told, "standing": self.standing.value}

    def move(self, standing: Standing) -> None:
        """Go to another standing. Raises `ValueError` for a move that the table does not have."""
        if standing not in MOVES[self.standing]:
            raise ValueError(f"a delivery cannot go from {self.standing} to {standing}")
        self.standing = standing

    def begin(self, *, now_ms: int) -> None:
        """Note that a try begins: until the lease is over nobody else makes one."""
        self.count += 1
        self.next_at = now_ms + int(LEASE_S * 1000)

    def end(self, outcome: Try, *, refused: bool = False) -> None:
        """Note how a try ended, and decide what follows from it."""
        self.tries = [*self.tries, outcome][-len(AGAIN_S) - 1 :]
        after_ms = outcome.at + outcome.took_ms
        if refused:
            self.move(Standing.REFUSED)
        elif outcome.status is not None and outcome.status in _OK:
            self.move(Standing.DELIVERED)
        elif outcome.status == GONE:
            self.move(Standing.DISABLED)
        elif self.count > len(AGAIN_S):
            self.move(Standing.EXHAUSTED)
        else:
            self.next_at = after_ms + int(AGAIN_S[self.count - 1] * 1000)

    def replay(self, *, now_ms: int) -> None:
        """Owe it anew, from now on."""
        self.move(Standing.PENDING)
        self.count, self.next_at = 0, now_ms


def explain(status: int) -> str | None:
    """Say in words why a status is no acknowledgement; None for one that is."""
    if status in _OK:
        return None
    if status in _REDIRECT:
        return "it redirects, and redirects are not followed: give the address itself"
    if status == GONE:
        return "nobody wants these any more: the address is turned off"
    return f"it answered {status}; only 2xx is an acknowledgement"


def off_key(tenant: str, url: str) -> str:
    """Give the name under which an address that is turned off stands: a digest, since addresses do not fit subjects."""
    return hashlib.sha256(f"{tenant}\n{url}".encode()).hexdigest()[:32]


pack = msgspec.msgpack.Encoder().encode
read = msgspec.msgpack.Decoder(Delivery).decode
