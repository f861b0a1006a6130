"""Calls of which nobody knows whether they were done: the list of them, and what an operator says of each.

A caller enters each of its own on `reach.unknown.<tenant>`, a stream; the platform enters tasks, and writes beside each
entry what an operator found out. Nothing is ever changed in place: what holds is folded from the messages, and of two
operators who resolve one entry the first wins, because the second one's write is refused by its subject's sequence.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from reach.wire.task import DEFAULT_TENANT
from reach.wire.whole import Count, Whole

MAX_PARAMETERS_BYTES: Final = 64 * 1024
"""Parameters are kept beside an entry up to this size, packed; of larger ones the digest alone."""

Kind = Literal["request", "stream", "publish", "local", "task"]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Tried(_Message):
    """One attempt of the call: who had it, why it was given up, how long it took, and what followed."""

    n: Count
    subject: str = ""
    provider: str | None = None
    instance: str | None = None
    reason: str | None = None
    took_ms: float = Field(default=0.0, ge=0)
    decision: str = ""


class UnknownOutcome(_Message):
    """One call, or task, whose outcome is unknown. `at` is when that was found, `began_at` when it began (epoch ms).

    `cause` is the reason of the failure that left it unknown. `digest` is that of the parameters' content; the
    parameters themselves are there where they are small and their keeping was not turned off. `store_key` is the name
    of its entry in the idempotency store, where it has one; `idempotency_key` the key that its caller gave.
    """

    reach_id: str = Field(min_length=1)
    message_id: str = ""
    kind: Kind = "request"
    tenant: str = DEFAULT_TENANT
    capability: str = Field(min_length=1)
    cause: str = ""
    at: Whole = 0
    began_at: Whole = 0
    provider: str | None = None
    instance: str | None = None
    source: str | None = None
    agent_id: str | None = None
    session_id: str | None = None
    task_id: str | None = None
    trace_id: str | None = None
    target: str | None = None
    require: dict[str, Any] = Field(default_factory=dict)
    idempotency_key: str | None = None
    store_key: str | None = None
    digest: str = ""
    parameters: dict[str, Any] | None = None
    attempts: tuple[Tried, ...] = ()


class Verdict(StrEnum):
    """What an operator says of an entry."""

    EXECUTED = "executed"
    NOT_EXECUTED = "not-executed"
    RETRY = "retry"


class Resolution(_Message):
    """What was said of an entry, by whom, when, and why.

    `result` is what later duplicates are given. `revision` is that of the idempotency entry when this was said: the
    only one that it is about. `applied` says what became of that entry, in words; empty as long as it is not done.
    """

    reach_id: str = Field(min_length=1)
    tenant: str = DEFAULT_TENANT
    verdict: Verdict
    by: str = Field(min_length=1)
    at: Whole = 0
    note: str = ""
    result: Any = None
    store_key: str | None = None
    revision: Whole = 0
    applied: str = ""


class Told(_Message):
    """That operators were alerted of a capability's unknown outcomes, up to a sequence of the stream."""

    tenant: str = DEFAULT_TENANT
    capability: str
    at: Whole = 0
    sequence: Whole = 0


# ------------------------------------------------------------------------------------------ questions


class UnknownVerb(StrEnum):
    """What operators may ask of the list, on `reach.unknowns.<verb>`."""

    LIST = "list"
    SHOW = "show"
    RESOLVE = "resolve"


class UnknownCommand(_Message):
    """What every question carries: who asks."""

    by: str = Field(min_length=1)


class ListUnknowns(UnknownCommand):
    """`reach.unknowns.list`: entries, the newest first; those that are resolved too with `resolved`.

    `capability` may be a pattern (`ledger.*`); `since` is epoch milliseconds; `before` the `before` of a page's end.
    """

    resolved: bool = False
    capability: str | None = None
    tenant: str | None = None
    since: Whole = 0
    before: Whole | None = None
    limit: int = Field(default=100, ge=1, le=500)


class ShowUnknown(UnknownCommand):
    """`reach.unknowns.show`: one entry, by its `reach_id`, its message's id, or the task's."""

    id: str = Field(min_length=1)


class ResolveUnknown(ShowUnknown):
    """`reach.unknowns.resolve`: say what became of a call.

    `result` goes with `executed`. `again` allows to send a call once more that was resolved as `retry` before: under
    the same key, for the case that whoever resolved it did not get that far.
    """

    verdict: Verdict
    result: Any = None
    note: str = ""
    again: bool = False


class KeyStanding(_Message):
    """How the entry in the idempotency store stands. `lives` says whether its owner is there; None: not known."""

    state: str
    owner: str | None = None
    at: Whole = 0
    lives: bool | None = None


class UnknownRow(_Message):
    """One line of the list. `also` are calls that met the same unknown entry of the idempotency store."""

    outcome: UnknownOutcome
    sequence: Whole = 0
    also: tuple[str, ...] = ()
    resolution: Resolution | None = None


class UnknownAnswer(_Message):
    """The answer to all three. `key` answers `show`; `message` is for people; `before` goes on a list."""

    message: str = ""
    rows: tuple[UnknownRow, ...] = ()
    before: Whole | None = None
    open: Whole = 0
    key: KeyStanding | None = None


COMMANDS: Final[dict[UnknownVerb, type[UnknownCommand]]] = {
    UnknownVerb.LIST: ListUnknowns,
    UnknownVerb.SHOW: ShowUnknown,
    UnknownVerb.RESOLVE: ResolveUnknown,
}
"""What each verb's request carries."""
