"""What stands of every task, folded from the events: the list that is searched, and the clock of what is due.

The stream of events is the truth; this is a view of it, built anew at each start, and nothing in it is written to
anywhere. A task that has ended stays listed for as long as its events are kept, the newest `MAX_ENDED` at most.
Parameters and results are not held here: they stand in the events.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from reach.bus.streams import EVENTS_KEPT_S
from reach.bus.taskstream import Entry
from reach.policy.tasklife import AT_WORK, IllegalMove, TaskLife, may_follow, of_last, step
from reach.wire.task import TaskEvent, TaskState

MAX_ENDED: Final = 100_000
"""Ended tasks that are listed; about 1 kB each."""

KEPT_MS: Final = int(EVENTS_KEPT_S * 1000)

FORGET_MS: Final = 3_600_000
"""A task without a time of its own (a script's) is ended an hour before its first event is forgotten."""

QUIET_MS: Final = 30_000
"""A task at work that has said nothing for so long is looked after: as long as the queue waits for a sign of life."""

LATE_MS: Final = 5_000
"""How long after the end of its time a worker may take to say so itself."""

Key = tuple[str, str]


@dataclass(slots=True)
class Row:
    """One task. Times are epoch milliseconds; `ended_at` and `expires_at` are 0 where there is none."""

    tenant: str
    task_id: str
    capability: str
    life: TaskLife
    began_at: int
    at: int
    expires_at: int = 0
    ended_at: int = 0
    source: str | None = None
    callback: str | None = None
    callback_states: frozenset[str] | None = None
    notify: str | None = None
    progress: dict[str, Any] | None = None
    question: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    cancel_wanted: bool = False
    silent: int = 0
    look_at: int = 0

    @property
    def key(self) -> Key:
        """Tenant and id."""
        return self.tenant, self.task_id

    @property
    def state(self) -> TaskState:
        """Its state; a row begins with an event, so it has one."""
        return self.life.state or TaskState.QUEUED

    @property
    def ends_at(self) -> int:
        """When its time is up."""
        return self.expires_at or self.began_at + KEPT_MS - FORGET_MS

    def is_told_of(self, state: TaskState) -> bool:
        """Whether its callback is told of a state that it came to: of its ends, unless its submitter said which."""
        if self.callback is None:
            return False
        return state.is_terminal if self.callback_states is None else state in self.callback_states

    def to_map(self) -> dict[str, Any]:
        """Give what is told of it."""
        life = self.life
        told: dict[str, Any] = {
            "task_id": self.task_id,
            "tenant": self.tenant,
            "capability": self.capability,
            "state": self.state.value,
            "attempt": life.attempt,
            "lost": life.lost,
            "run": life.run,
            "sequence": life.sequence,
            "began_at": self.began_at,
            "at": self.at,
            "expires_at": self.expires_at or None,
            "ended_at": self.ended_at or None,
            "due": life.due or None,
            "source": self.source,
            "agent_id": life.agent_id,
            "instance": life.instance,
            "progress": self.progress,
            "question": self.question,
            "error": self.error,
            "callback": self.callback,
        }
        return {name: value for name, value in told.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is looked for: all that is given must hold. `text` is a part of id, capability, submitter or error."""

    states: frozenset[str] = frozenset()
    tenant: str | None = None
    capability: str | None = None
    text: str | None = None
    limit: int = 50
    before: int | None = None
    """Rows whose last event stands before this sequence: where the page before ended."""

    def finds(self, row: Row) -> bool:
        """Whether a row is one."""
        if self.before is not None and row.life.sequence >= self.before:
            return False
        if self.states and row.state.value not in self.states:
            return False
        if self.tenant is not None and row.tenant != self.tenant:
            return False
        if self.capability is not None and not _is_below(row.capability, self.capability):
            return False
        return self.text is None or self.text.lower() in _words(row)


@dataclass(slots=True)
class Book:
    """All tasks, the one with the newest event last."""

    rows: OrderedDict[Key, Row] = field(default_factory=OrderedDict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    """Tasks by capability and state."""
    quiet_ms: int = QUIET_MS
    _ended: int = 0
    _due: list[tuple[int, int, Key]] = field(default_factory=list)

    def take(self, entry: Entry) -> Row | None:
        """Take in one event; its row, or None for one that changes nothing."""
        event, sequence = entry.event, entry.sequence
        row = self.rows.get((event.tenant, event.task_id))
        if row is None:
            row = Row(
                event.tenant, event.task_id, event.capability, of_last(event, sequence), event.at, event.at
            )
            self.rows[row.key] = row
        elif sequence <= row.life.sequence:
            return None
        else:
            life = _after(row.life, event, sequence)
            if life is None:
                row.life = replace(row.life, sequence=sequence)
                return None
            self._count(row, -1)
            row.life = life
            self.rows.move_to_end(row.key)
        _note(row, event)
        self._count(row, 1)
        if row.life.has_ended:
            self._forget_oldest()
        else:
            self.remind(row, self._due_of(row))
        return row

    def remind(self, row: Row, at_ms: int) -> None:
        """See to it that a row is due at a time, at the latest."""
        if row.look_at == 0 or at_ms < row.look_at:
            row.look_at = at_ms
            heapq.heappush(self._due, (at_ms, row.life.sequence, row.key))

    def due(self, now_ms: int, *, most: int = 100) -> list[Row]:
        """Take out the rows that should be looked after now."""
        found: list[Row] = []
        while self._due and self._due[0][0] <= now_ms and len(found) < most:
            at_ms, _, key = heapq.heappop(self._due)
            row = self.rows.get(key)
            if row is None or row.life.has_ended or row.look_at != at_ms:
                continue
            row.look_at = 0
            wanted = self._due_of(row)
            if wanted > now_ms and not row.cancel_wanted:
                self.remind(row, wanted)  # It has said something meanwhile.
            else:
                found.append(row)
        return found

    def search(self, wanted: Search) -> list[Row]:
        """Give the rows that are looked for, the newest first."""
        found: list[Row] = []
        for row in reversed(self.rows.values()):
            if wanted.finds(row):
                found.append(row)
                if len(found) >= wanted.limit:
                    break
        return found

    def forget(self, now_ms: int) -> int:
        """Drop ended tasks whose events are no longer kept; how many those were."""
        old = [row for row in self._ends() if row.ended_at <= now_ms - KEPT_MS]
        for row in old:
            self._drop(row)
        return len(old)

    def _due_of(self, row: Row) -> int:
        """When somebody should look after it next."""
        if row.state not in AT_WORK:
            return row.ends_at
        return min(row.ends_at + LATE_MS, row.at + self.quiet_ms)

    def _ends(self) -> Iterator[Row]:
        return (row for row in self.rows.values() if row.life.has_ended)

    def _forget_oldest(self) -> None:
        if self._ended > MAX_ENDED:
            self._drop(next(self._ends()))

    def _drop(self, row: Row) -> None:
        self._count(row, -1)
        del self.rows[row.key]

    def _count(self, row: Row, by: int) -> None:
        self._ended += by if row.life.has_ended else 0
        states = self.counts.setdefault(row.capability, {})
        left = states.get(row.state.value, 0) + by
        if left:
            states[row.state.value] = left
        else:
            states.pop(row.state.value, None)
            if not states:
                del self.counts[row.capability]


def _after(life: TaskLife, event: TaskEvent, sequence: int) -> TaskLife | None:
    """Give the life after an event; None where it changes nothing: a schedule that fired late, a second submission."""
    try:
        return step(life, event, sequence)
    except IllegalMove:
        if event.state is TaskState.QUEUED and not may_follow(
            life.state, event.state, again=event.run > life.run
        ):
            return None
        return of_last(event, sequence)  # A history that cannot be: its last event counts, as for workers.


def _note(row: Row, event: TaskEvent) -> None:
    row.at = event.at
    row.silent = 0
    row.source = event.source if event.envelope is not None else row.source
    if event.callback is not None:
        row.callback = event.callback
        row.callback_states = None if event.callback_states is None else frozenset(event.callback_states)
    row.notify = event.notify or row.notify
    if event.envelope is not None:
        row.expires_at = event.envelope.expires_at or 0
    if event.state is TaskState.QUEUED:  # Anew, too.
        row.progress = row.error = None
        row.began_at = max(event.at, event.due or 0)  # What comes due has the bytes of its submission.
    row.ended_at = event.at if event.state.is_terminal else 0
    row.cancel_wanted = row.cancel_wanted and not event.state.is_terminal
    if event.error is not None:
        row.error = event.error.to_map()
    data = event.data if type(event.data) is dict else {}
    if event.state is TaskState.PROGRESS:
        told = {name: data[name] for name in ("fraction", "message") if name in data}
        row.progress = told or row.progress
    row.question = (
        {**data, "event_id": event.event_id}
        if event.state is TaskState.INPUT_REQUIRED
        else (row.question if event.state is TaskState.PROGRESS else None)
    )


def _is_below(capability: str, pattern: str) -> bool:
    for ending in (".*", ".>"):
        if pattern.endswith(ending):
            return capability.startswith(pattern.removesuffix(ending) + ".")
    return capability == pattern


def _words(row: Row) -> str:
    error = row.error or {}
    return " ".join(
        (row.task_id, row.capability, row.source or "", error.get("reason", ""), error.get("message", ""))
    ).lower()
