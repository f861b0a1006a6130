"""The life of an idempotency entry, and what a call that meets one does (behaviour IDEM-1 to IDEM-3).

=========  =================================================  ========================================
state      may become                                         when
=========  =================================================  ========================================
(none)     running                                            a call begins
running    done, unknown, released, running                   its handler ended; whoever had it is gone
done       running                                            its time is over: it counts as none
unknown    done, released                                     whoever had it was late; a person knows
released   running, done                                      it counts as none; the late word
=========  =================================================  ========================================

A running entry is never judged by its age, only by whoever has the call: gone means that it may have been done. An
idempotent capability is then simply done again, another one is not: nobody knows, and a person decides. Whoever was
taken for gone and comes back may still say how it ended, unless somebody else has the call by then.

================  =========================  ================================================
what              number                     where it comes from
================  =========================  ================================================
looked again      a quarter of the wait so   ours: late by a quarter at most, and 100 waiting
                  far, 10 ms to 250 ms       processes cost a store 400 questions a second
come again        what such a call usually   ours: a mean, no promise
                  takes, 100 ms to 10 s
================  =========================  ================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from msgspec.structs import replace

from reach.faults import Executed, Reason
from reach.policy.dedupe import notice, still_holds
from reach.wire.idempotency import EntryState, IdempotencyEntry
from reach.wire.reply import Failure, Reply

LOOK_PART: Final = 0.25
LOOK_LEAST_S: Final = 0.010
LOOK_MOST_S: Final = 0.250
AGAIN_LEAST_MS: Final = 100
AGAIN_MOST_MS: Final = 10_000

_S: Final = EntryState

MOVES: Final[dict[EntryState | None, frozenset[EntryState]]] = {
    None: frozenset({_S.RUNNING, _S.DONE}),
    _S.RUNNING: frozenset({_S.RUNNING, _S.DONE, _S.UNKNOWN, _S.RELEASED}),
    _S.DONE: frozenset({_S.RUNNING}),
    _S.UNKNOWN: frozenset({_S.DONE, _S.RELEASED}),
    _S.RELEASED: frozenset({_S.RUNNING, _S.DONE}),
}
"""From where to where an entry may go; None is a key that holds nothing."""


def check_move(state: EntryState | None, to: EntryState) -> None:
    """Let a legal move pass. Raises `ValueError` for another one."""
    if to not in MOVES[state]:
        raise ValueError(f"an entry that is {'absent' if state is None else state} cannot become {to}")


class Owner(StrEnum):
    """What is known of the instance that an entry names."""

    ALIVE = "alive"
    SILENT = "silent"
    """It is connected and says nothing, or cannot be asked, and its lease is not over."""
    GONE = "gone"
    """Its lease is over: its connection ended, or it was silent for too long."""
    IDLE = "idle"
    """It says itself that it does not run the call: whatever was begun there came to nothing."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Write a running entry after revision `after`, and run the call; `takes_over` what somebody else had begun."""

    after: int
    takes_over: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again after `look_s` seconds: it is still under way."""

    look_s: float


@dataclass(frozen=True, slots=True)
class Give:
    """Give what is stored."""

    reply: Reply


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer with a failure; `declare` writes first that the outcome is unknown."""

    failure: Failure
    declare: bool = False


Decision = Begin | Wait | Give | Refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A call that meets an entry.

    `digest` is of its parameters; `idempotent` its capability's declaration here; `waited_s` how long it has waited and
    `left_s` how long it still may; `usual_ms` what the capability takes on the average; `now_ms` the broker's time.
    """

    capability: str
    digest: str
    idempotent: bool
    waited_s: float
    left_s: float
    usual_ms: float
    now_ms: int
    language: str = "en"
    message_id: str | None = None
    """The call's own id, which all its attempts have."""


def decide(entry: IdempotencyEntry | None, revision: int, owner: Owner, asking: Asking) -> Decision:
    """Decide what a call does that meets `entry` (None for none, or one that was released) at `revision`."""
    if entry is None or not holds(entry, asking.now_ms):
        return Begin(revision)
    if entry.digest != asking.digest:
        return Refuse(Failure.of(Reason.KEY_REUSED))
    match entry.state:
        case EntryState.DONE:
            reply = Reply(ok=True) if entry.reply is None else entry.reply
            return Give(given_again(reply, implicit=entry.implicit, language=asking.language))
        case EntryState.UNKNOWN:
            return Refuse(unknown(entry.cause))
        case _:
            return _running(entry, revision, owner, asking)


def holds(entry: IdempotencyEntry, now_ms: int) -> bool:
    """Whether an entry still stands for a call that comes `now_ms`."""
    done_at = entry.done_at if entry.state is EntryState.DONE else None
    done_s = None if done_at is None else done_at / 1000
    return still_holds(implicit=entry.implicit, done_at=done_s, now=now_ms / 1000)


def _running(entry: IdempotencyEntry, revision: int, owner: Owner, asking: Asking) -> Decision:
    if owner is Owner.IDLE:
        return Begin(revision, takes_over=True)
    if owner is Owner.GONE:
        if entry.idempotent and asking.idempotent:
            return Begin(revision, takes_over=True)
        return Refuse(unknown(Reason.INSTANCE_GONE), declare=True)
    if asking.left_s <= 0:
        return Refuse(still_running(entry, asking))
    look_s = min(max(LOOK_PART * asking.waited_s, LOOK_LEAST_S), LOOK_MOST_S)
    return Wait(min(look_s, asking.left_s))


def given_again(reply: Reply, *, implicit: bool, language: str = "en") -> Reply:
    """Give a stored reply as a duplicate's answer; who gave no key itself is told why (IDEM-4)."""
    said = notice(language) if implicit else reply.notice
    return replace(reply, duplicate=True, retried=False, trace=None, notice=said)


def unknown(cause: str | None) -> Failure:
    """Say that nobody knows whether it was done."""
    return Failure.of(Reason.OUTCOME_UNKNOWN, cause=cause)


def as_unknown(entry: IdempotencyEntry, *, cause: str | None, now_ms: int) -> IdempotencyEntry:
    """Give what a running entry becomes whose instance is gone, and that is not idempotent (IDEM-3)."""
    check_move(entry.state, EntryState.UNKNOWN)
    return replace(entry, state=EntryState.UNKNOWN, done_at=now_ms, executed=Executed.MAYBE, cause=cause)


def still_running(entry: IdempotencyEntry, asking: Asking) -> Failure:
    """Say of a call whose time is over that what it waited for still runs.

    Where that is an earlier attempt of its own, it is stopped together with the call: nobody will know how it ended.
    """
    if entry.message_id is not None and entry.message_id == asking.message_id and not entry.idempotent:
        return unknown(Reason.DEADLINE)
    return in_progress(entry, asking)


def in_progress(entry: IdempotencyEntry, asking: Asking) -> Failure:
    """Say that it still runs, where, and when to ask again (IDEM-2)."""
    ran_ms = max(0, asking.now_ms - entry.begun_at)
    rest_ms = asking.usual_ms - ran_ms if ran_ms < asking.usual_ms else ran_ms / 2
    message = (
        f"A call with the same idempotency key has been running for {ran_ms / 1000:.1f} s at {entry.instance}. "
        "Ask again later with the same key and parameters: its result will be given."
    )
    again_ms = int(min(max(rest_ms, AGAIN_LEAST_MS), AGAIN_MOST_MS))
    return Failure.of(Reason.IN_PROGRESS, message, retry_after_ms=again_ms)


def end_of(executed: Executed | None, *, idempotent: bool) -> EntryState:
    """Give what an entry becomes when its handler has ended: `executed` is what its failure says, None for success."""
    match executed:
        case None | Executed.YES:
            return EntryState.DONE
        case Executed.NO:
            return EntryState.RELEASED
        case Executed.MAYBE:
            return EntryState.RELEASED if idempotent else EntryState.UNKNOWN


class Late(StrEnum):
    """What whoever ran a call does when its last write was refused."""

    AGAIN = "again"
    """Write after what is there: it is about our run, or nothing is there."""
    LEAVE = "leave"
    """Somebody else has the call, or a person has decided: what is there stays."""


def late_word(entry: IdempotencyEntry | None, nonce: str, to: EntryState) -> Late:
    """Decide whether the end `to` of run `nonce` is still written where `entry` is found (None: nothing, released)."""
    if entry is None:
        # Whoever released it did not know that it was done: with the result there it is not done again.
        return Late.AGAIN if to is EntryState.DONE else Late.LEAVE
    if entry.nonce != nonce or entry.state is to or to not in MOVES[entry.state]:
        return Late.LEAVE
    # What a person or another instance has called unknown is ended by a result only.
    return Late.AGAIN if entry.state is EntryState.RUNNING or to is EntryState.DONE else Late.LEAVE
