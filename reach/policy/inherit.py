"""Who may stand in for whom by a more general name: `invoice.extract` < `invoice` < `document` (behaviour ROUTE-4).

A name's parents are its dotted prefix and what a small table says of it; their parents follow, nearest first. How
much that counts is one word for all capabilities:

=========  ==============================================================================================
mode       a more general provider serves a more specific request
=========  ==============================================================================================
fallback   when no exact provider is usable (the default): its tiers come after all of the exact ones
weight     beside the exact ones, in the tier of its own card, with a match of 0.6 (ROUTE-2)
off        never
=========  ==============================================================================================
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from reach.errors import ConfigError, NameRefused
from reach.wire import names

APART: Final = 10_000
"""What the priority of a stand-in's tier is above that of its card, for each generation: after everything exact."""

MOST_ANCESTORS: Final = 16
"""So many are looked at; a table that says more is too deep to be understood."""

PARENTS: Final = "REACH_PARENTS"
MODE: Final = "REACH_INHERIT"
"""The platform's settings: the table (`invoice=document, scan=document`), and the mode."""


class Mode(StrEnum):
    """See the module."""

    FALLBACK = "fallback"
    WEIGHT = "weight"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Inheritance:
    """The rule in force. `parents` names, for a capability, the more general ones beside its own prefix."""

    mode: Mode = Mode.FALLBACK
    parents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, env: Mapping[str, str]) -> Inheritance:
        """Read it from the environment. Raises `ConfigError` for what is neither a mode nor a table."""
        told = env.get(MODE, "").strip().lower() or Mode.FALLBACK
        try:
            mode = Mode(told)
        except ValueError:
            raise ConfigError(f"{MODE} is {told!r}. Right would be {', '.join(Mode)}.") from None
        return cls(mode, parse(env.get(PARENTS, "")))

    def ancestors(self, capability: str) -> tuple[tuple[str, int], ...]:
        """Give the more general names of a capability and how many generations away each is, nearest first."""
        if self.mode is Mode.OFF:
            return ()
        found: dict[str, int] = {}
        waiting = deque([(capability, 0)])
        while waiting and len(found) < MOST_ANCESTORS:
            name, generation = waiting.popleft()
            prefix = name.rpartition(".")[0]
            for parent in (*([prefix] if prefix else []), *self.parents.get(name, ())):
                if parent != capability and parent not in found:
                    found[parent] = generation + 1
                    waiting.append((parent, generation + 1))
        return tuple(found.items())

    def priority(self, own: int, generation: int) -> int:
        """Give the tier in which a provider serves a request so many generations below its own name."""
        return own + APART * generation if self.mode is Mode.FALLBACK else own


def stands_in(serves: str | None, priority: int) -> bool:
    """Say whether a lane is a stand-in's: its provider serves by a more general name, after everybody exact."""
    return serves is not None and priority >= APART // 2


def parse(text: str) -> dict[str, tuple[str, ...]]:
    """Read a table: `specific=general`, several with commas; a name may have several parents.

    Raises:
        ConfigError: a line is none, or a name is no capability's.
    """
    found: dict[str, tuple[str, ...]] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        specific, sign, general = (piece.strip() for piece in part.partition("="))
        if not sign:
            raise ConfigError(
                f"{PARENTS} has {part!r}. Right would be invoice=document, several with commas."
            )
        try:
            child, parent = names.capability(specific), names.capability(general)
        except NameRefused as error:
            raise ConfigError(f"{PARENTS} has {part!r}: {error}") from None
        if child == parent:
            raise ConfigError(f"{PARENTS} says that {child} is more general than itself.")
        if parent not in found.get(child, ()):
            found[child] = (*found.get(child, ()), parent)
    return found
