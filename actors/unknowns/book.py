"""What stands of every unknown outcome, folded from the stream: the list that is searched, and whom to alert of what.

The stream is the truth; this is a view of it, built anew at each start. Several calls that met the same unknown entry
of the idempotency store are one matter: the first is listed, the others beside it, as long as it is not resolved.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from reach.errors import SchemaInvalid
from reach.policy.dedupe import explicit_key, implicit_key
from reach.wire import names
from reach.wire.alert import Alert
from reach.wire.unknown import ListUnknowns, Resolution, Told, UnknownOutcome, UnknownRow

MAX_ROWS: Final = 100_000
"""Rows that are listed; the oldest resolved ones go first. About 1 kB each: parameters are not held here."""

MAX_ALSO: Final = 100
"""Further calls that are named beside one."""

EACH_MS: Final = 300_000
"""The same matter is told again at most so often (behaviour SEE-9)."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,128}").fullmatch

Matter = tuple[str, str]
"""Tenant and capability: what operators are alerted of together."""


@dataclass(slots=True)
class Row:
    """One unknown outcome. `sequence` is where it stands in the stream, `resolved_at` where its resolution does.

    `stored_ms` is when it came there, in epoch milliseconds of the broker.
    """

    outcome: UnknownOutcome
    sequence: int
    stored_ms: int
    also: list[str] = field(default_factory=list)
    resolution: Resolution | None = None
    resolved_at: int = 0

    def told(self) -> UnknownRow:
        """Give what is told of it."""
        return UnknownRow(
            outcome=self.outcome, sequence=self.sequence, also=tuple(self.also), resolution=self.resolution
        )


class Book:
    """All of them, the newest last."""

    def __init__(self) -> None:
        self.rows: OrderedDict[str, Row] = OrderedDict()
        self._of_key: dict[tuple[str, str], Row] = {}
        self._untold: dict[Matter, list[Row]] = {}
        self._told: dict[Matter, tuple[Told, int]] = {}

    # -- taking in -----------------------------------------------------------------------------------

    def enter(self, outcome: UnknownOutcome, sequence: int, stored_ms: int) -> None:
        """Take an entry in; one that is known, or that met what another one has met, makes no row of its own."""
        if outcome.reach_id in self.rows:
            return
        known = self._same(outcome)
        if known is not None:
            if outcome.reach_id not in known.also and len(known.also) < MAX_ALSO:
                known.also.append(outcome.reach_id)
            return
        row = Row(outcome.model_copy(update={"parameters": None}), sequence, stored_ms)
        self.rows[outcome.reach_id] = row
        if outcome.store_key is not None:
            self._of_key[outcome.tenant, outcome.store_key] = row
        matter = outcome.tenant, outcome.capability
        told = self._told.get(matter)
        if told is None or told[0].sequence < sequence:
            self._untold.setdefault(matter, []).append(row)
        self._forget_oldest()

    def resolve(self, resolution: Resolution, sequence: int) -> None:
        """Take a resolution in; a later one of the same entry says what became of the first."""
        row = self.rows.get(resolution.reach_id)
        if row is not None and sequence > row.resolved_at:
            row.resolution, row.resolved_at = resolution, sequence

    def tell(self, told: Told, sequence: int) -> None:
        """Take in that operators were alerted."""
        matter = told.tenant, told.capability
        self._told[matter] = told, sequence
        left = [row for row in self._untold.get(matter, ()) if row.sequence > told.sequence]
        if left:
            self._untold[matter] = left
        else:
            self._untold.pop(matter, None)

    # -- looking -------------------------------------------------------------------------------------

    def has(self, outcome: UnknownOutcome) -> bool:
        """Whether a call is on the list: itself, or as another one that met the same."""
        return outcome.reach_id in self.rows or self._same(outcome) is not None

    def find(self, name: str) -> Row | None:
        """Give the row of a `reach_id`, a message's id, a task's, or of a call beside another one."""
        row = self.rows.get(name)
        if row is not None:
            return row
        for one in reversed(self.rows.values()):
            if name in {one.outcome.message_id, one.outcome.task_id} or name in one.also:
                return one
        return None

    def search(self, wanted: ListUnknowns) -> tuple[list[Row], int | None]:
        """Give the rows that are looked for, the newest first, and where the next page begins, if anywhere."""
        found: list[Row] = []
        for row in reversed(self.rows.values()):
            if not _finds(wanted, row):
                continue
            if len(found) == wanted.limit:
                return found, found[-1].sequence
            found.append(row)
        return found, None

    @property
    def open(self) -> int:
        """How many are not resolved."""
        return sum(row.resolution is None for row in self.rows.values())

    def unapplied(self) -> list[Row]:
        """Give the rows whose resolution is not known to have had its effect."""
        return [
            row for row in self.rows.values() if row.resolution is not None and not row.resolution.applied
        ]

    # -- alerts --------------------------------------------------------------------------------------

    def due(self, now_ms: int) -> list[tuple[Told, int]]:
        """Give what operators should be alerted of now: what to write first, and the sequence that it follows."""
        found: list[tuple[Told, int]] = []
        for (tenant, capability), rows in self._untold.items():
            last, sequence = self._told.get((tenant, capability), (None, 0))
            if last is None or now_ms - last.at >= EACH_MS:
                newest = max(row.sequence for row in rows)
                told = Told(tenant=tenant, capability=capability, at=now_ms, sequence=newest)
                found.append((told, sequence))
        return found

    def alert(self, told: Told) -> Alert:
        """Give the alert for what is not told yet, up to `told`."""
        matter = told.tenant, told.capability
        rows = [row for row in self._untold.get(matter, ()) if row.sequence <= told.sequence]
        count = max(1, len(rows))
        first = rows[0].outcome if rows else None
        of = (
            ""
            if first is None
            else f" ({first.cause or 'unknown'}, the first at {first.instance or 'nobody known'})"
        )
        return Alert(
            kind="outcome_unknown",
            severity="critical",
            subject=told.capability,
            message=f"It is not known whether {count} of the calls of {told.capability} were done{of}.",
            first_seen=told.at if first is None else first.at,
            at=told.at,
            count=count,
            link="reach outcomes ls" if first is None else f"reach outcomes show {first.reach_id}",
        )

    # -- inside --------------------------------------------------------------------------------------

    def _same(self, outcome: UnknownOutcome) -> Row | None:
        """Give the row of the matter that a call has met; what ended before a resolution is what was resolved."""
        known = None if outcome.store_key is None else self._of_key.get((outcome.tenant, outcome.store_key))
        if known is None or (known.resolution is not None and outcome.at > known.resolution.at):
            return None
        return known

    def _forget_oldest(self) -> None:
        if len(self.rows) <= MAX_ROWS:
            return
        oldest = next((row for row in self.rows.values() if row.resolution is not None), None)
        self.drop(oldest or next(iter(self.rows.values())))

    def drop(self, row: Row) -> None:
        """Let a row go."""
        del self.rows[row.outcome.reach_id]
        key = row.outcome.tenant, row.outcome.store_key or ""
        if self._of_key.get(key) is row:
            del self._of_key[key]

    def forget(self, before_ms: int) -> None:
        """Drop what the stream has forgotten, too."""
        for row in [row for row in self.rows.values() if row.stored_ms < before_ms]:
            self.drop(row)


def as_it_may_be(outcome: UnknownOutcome, tenant: str) -> UnknownOutcome:
    """Give an entry as far as its writer may say it: of the subject's tenant, and of a key that follows from the rest.

    Any caller may write one, and what an operator says of it changes the entry of that key. Raises `SchemaInvalid`,
    `NameRefused` for names that cannot stand in a subject.
    """
    names.capability(outcome.capability)
    if not _TOKEN(outcome.reach_id):
        raise SchemaInvalid(f"reach_id {outcome.reach_id[:80]!r} is no token of [A-Za-z0-9_-]")
    key = None
    if outcome.store_key is not None and outcome.idempotency_key:
        key = explicit_key(tenant, outcome.idempotency_key, outcome.capability)
    elif outcome.store_key is not None and outcome.task_id and outcome.digest:
        key = implicit_key(tenant, outcome.session_id, outcome.task_id, outcome.capability, outcome.digest)
    true = key if key == outcome.store_key else None
    return outcome.model_copy(update={"tenant": tenant, "store_key": true})


def _finds(wanted: ListUnknowns, row: Row) -> bool:
    outcome = row.outcome
    return (
        (wanted.resolved or row.resolution is None)
        and (wanted.before is None or row.sequence < wanted.before)
        and outcome.at >= wanted.since
        and wanted.tenant in {None, outcome.tenant}
        and (wanted.capability is None or _is_below(outcome.capability, wanted.capability))
    )


def _is_below(capability: str, pattern: str) -> bool:
    for ending in (".*", ".>"):
        if pattern.endswith(ending):
            return capability.startswith(pattern.removesuffix(ending) + ".")
    return capability == pattern
