"""What a read asks, and for whom: two calls with the same question may have one answer (GUARD-5).

A question is the capability and the digest of the canonical parameters; the *tenant*; and the *principal*: the name
in the envelope's `source`, which is who is asking (`reach.context(agent_id=…)`, the agent whose handler calls, else
this client). `target`, `require` and `prefer` belong to it where they are given, since they change who may answer.
Nothing else of a call is sent with a read that may be shared: no session, no task, no trigger. So an answer cannot
depend on what is not part of its question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from reach.policy.fingerprint import digest

if TYPE_CHECKING:
    from reach.call.call import Call

_RANKS: Final = {"core": 0, "normal": 1, "offline": 2}


class Question(NamedTuple):
    """Who asks what."""

    capability: str
    tenant: str | None
    principal: str | None
    digest: str


class Manner(NamedTuple):
    """How a read is made: only reads that are made alike share one call."""

    again: bool
    retry: bool
    hedge: bool
    queue: bool


def question_of(call: Call, *, without: str | None = None) -> Question:
    """Give the question of a call; leaving the parameter `without` out, that of the batch which it may go with.

    Raises `NotOnTheWire` for parameters that could not be sent.
    """
    envelope = call.envelope
    asked: Any = envelope.payload
    if without is not None:
        asked = {key: value for key, value in asked.items() if key != without}
    if envelope.target or envelope.require or envelope.prefer:
        asked = [asked, envelope.target, envelope.require, envelope.prefer]
    return Question(call.capability, envelope.tenant, envelope.source, digest(asked))


def manner_of(call: Call) -> Manner:
    """Give the manner in which a call is to be made."""
    options = call.options
    return Manner(call.around.again, options.retry, options.hedge, options.queue)


def rank_of(call: Call) -> int:
    """Give the rank of a call's priority: 0 goes first."""
    return _RANKS[call.envelope.priority]


def may_share(call: Call) -> bool:
    """Whether a call may have an answer that was not made for it alone.

    Not where its caller says so, wants to see the hops of its own call, or gave it a key of its own.
    """
    card = call.card
    return (
        card is not None
        and card.reads
        and call.kind == "request"
        and call.options.cache
        and not call.keyed
        and not (call.options.trace or call.around.wants_hops)
    )


def fresh(value: Any) -> Any:
    """Give a copy of what came over the wire, or is to go over it, that may be changed without changing the other."""
    if type(value) is dict:
        return {key: fresh(item) for key, item in value.items()}
    if type(value) is list:
        return [fresh(item) for item in value]
    return value
