"""How large the numbers and texts of a message may be, where whoever reads it divides, adds up or keeps them.

Anybody with a key of the right role may publish anything, and one message must not end its reader: a lease of
1e-320 s is divided by, counts of 2⁶³ are added up beyond what the table can tell, a reason of a megabyte makes an
entry that no broker takes. The bounds lie far outside of what is sensible, and well inside of what can be computed.
They are the reader's, as those of names are: the published schemas promise no number of them.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Annotated, Final, TypeVar

from pydantic import AfterValidator, Field

from reach.wire.whole import MAX_WHOLE, Whole

LEAST_LEASE_S: Final = 0.1
MOST_LEASE_S: Final = 86_400.0

MOST_CAPABILITIES: Final = 1000
"""What one instance may serve: half a second's work for whoever leads, at each of its registrations."""

N = TypeVar("N", int, float)
S = TypeVar("S", bound=Sized)


def within(least: float, most: float) -> AfterValidator:
    """Make the check of a number that lies between these two."""

    def check(value: N) -> N:
        if not least <= value <= most:
            raise ValueError(f"{value:g} is out of bounds: right would be {least:g} to {most:g}")
        return value

    return AfterValidator(check)


def at_most(most: int) -> AfterValidator:
    """Make the check of something that has a length: a text in characters, a list in items."""

    def check(value: S) -> S:
        if len(value) > most:
            kind = "characters" if isinstance(value, str) else "items"
            raise ValueError(f"{len(value)} {kind} are too many: right would be at most {most}")
        return value

    return AfterValidator(check)


Lease = Annotated[float, within(LEAST_LEASE_S, MOST_LEASE_S)]
"""Seconds for which somebody counts as there without a word."""

Patience = Annotated[float, Field(gt=0), within(0, MOST_LEASE_S)]
"""Seconds that something may take: a day at most."""

Stored = Annotated[int, within(0, MAX_WHOLE)]
"""A whole number that is written down again: what a signed 64-bit integer holds."""

Tally = Annotated[Whole, within(0, 2**40)]
"""A count that is added to others; more than a call each microsecond for twelve days is none."""

Priority = Annotated[int, within(-1_000_000, 1_000_000)]
"""A tier: the least is the best. Stand-ins add some ten thousands to it."""

Limit = Annotated[int, within(1, MAX_WHOLE)]
"""Calls at once."""

Factor = Annotated[float, within(0, 1e9)]
"""One factor of a weight, 1 being the usual."""

Dearness = Annotated[float, Field(gt=0), within(0, 1e9)]
"""A factor that is divided by."""

Amount = Annotated[float, within(0, 1e15)]
"""A cost, in whatever unit its capability uses."""

Said = Annotated[str, at_most(1000)]
"""Why an operator wants something: it is kept in the table and the audit, and shown in one line."""

Short = Annotated[str, at_most(200)]
"""Who an operator is, a version, the name of a strategy."""
