"""The words of a diagnosis: what was looked at, how it is, what was found, and what to do.

Checks stand in the order of the way a call takes. Each relies on those before it, so the first that fails ends
the diagnosis: everything after it would only repeat, in other words, that the way is broken.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reach.bus.connection import Connection
    from reach.bus.settings import Settings
    from reach.wire.card import Card


class State(StrEnum):
    """How something that was looked at is. `SKIPPED` is for what cannot be told because of what failed before."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; `fix` says what to do, and is there whenever something is wrong."""

    state: State
    found: str
    fix: str = ""


@dataclass(slots=True)
class Patient:
    """What is examined, and what the checks so far have learned about it."""

    url: str | None
    capability: str | None = None
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    settings: Settings | None = None
    connection: Connection | None = None
    cards: tuple[Card, ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether the state folder decides where NATS is: nobody named another place."""
        return not (self.url or self.env.get("REACH_URL") or self.env.get("REACH_CONTEXT"))

    @property
    def known_settings(self) -> Settings:
        """The settings, which an earlier check has resolved."""
        if self.settings is None:
            raise RuntimeError("the check of settings comes before those that need them")
        return self.settings

    @property
    def link(self) -> Connection:
        """The connection, which an earlier check has opened."""
        if self.connection is None:
            raise RuntimeError("the check of the login comes before those that need a connection")
        return self.connection


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at; `name` is stable, for programs."""

    name: str
    title: str
    look: Callable[[Patient], Awaitable[Finding]]


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """A check with its finding."""

    check: Check
    finding: Finding

    def to_map(self) -> dict[str, Any]:
        """Give it for programs."""
        finding = self.finding
        return {
            "name": self.check.name,
            "state": finding.state.value,
            "found": finding.found,
            "fix": finding.fix,
        }


def good(found: str) -> Finding:
    """All is as it should be."""
    return Finding(State.OK, found)


def bad(found: str, *, fix: str) -> Finding:
    """The way is broken here."""
    return Finding(State.FAILED, found, fix)


def told(text: str) -> Finding:
    """Turn one of our own messages, which say what is wrong and then what would be right, into a finding."""
    found, mark, fix = text.partition("Right would be")
    if mark:
        return bad(found.strip(), fix="Right would be" + fix)
    found, _, fix = text.partition(". ")
    return bad(found.rstrip(".") + ".", fix=fix.strip() or "See above.")


async def examine(patient: Patient, checks: Sequence[Check]) -> list[Diagnosed]:
    """Look at one thing after the other, until one fails."""
    diagnosed: list[Diagnosed] = []
    broken = ""
    for check in checks:
        if broken:
            finding = Finding(State.SKIPPED, f"not looked at: {broken} comes first")
        else:
            finding = await check.look(patient)
            broken = check.title if finding.state is State.FAILED else ""
        diagnosed.append(Diagnosed(check, finding))
    return diagnosed
