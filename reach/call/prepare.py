"""Step 1 of a call: an envelope, ids, and the time it has.

What the caller passed becomes parameters (a dict, a pydantic model or an `Envelope`); everything else is
inherited from what surrounds the call (behaviour CALL-1, CALL-4). Mistakes of the program, such as a value
that cannot cross the wire, raise here, before anything is sent.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import anyio
from pydantic import BaseModel

from reach import ids
from reach.call.call import Call
from reach.call.context import NOTHING_AROUND, current
from reach.call.scopes import scope_deadline
from reach.policy.deadline import card_timeout_s
from reach.wire import codec, names
from reach.wire.envelope import MAX_CHAIN, Envelope, is_envelope
from reach.wire.trace import Hop, Trace

if TYPE_CHECKING:
    from reach.call.context import CallContext
    from reach.call.options import Options
    from reach.wire.card import CapabilityCard
    from reach.wire.record import CallKind

_NO_TIME_S: Final = 1e-9
"""What an envelope gets whose time is already up: it fails by its deadline rather than as a mistake."""


def parameters_of(given: object) -> dict[str, Any]:
    """Give the parameter map of what a caller passed. Raises `TypeError` in words, `NotOnTheWire` with a path."""
    if given is None:
        return {}
    if isinstance(given, BaseModel):
        given = given.model_dump(mode="python", by_alias=True)
    elif not isinstance(given, dict):
        msg = f"parameters are a dict, a pydantic model or a reach.Envelope, not {type(given).__name__}"
        raise TypeError(msg)
    params: dict[str, Any] = codec.wire_form(given)
    return params


def envelope_of(given: object) -> Envelope:
    """Give a fresh envelope for what a caller passed; the caller's own object is never changed.

    Raises `NameRefused` for a name in it that cannot stand in a subject.
    """
    if type(given) is dict and "payload" not in given:
        return Envelope(given if codec.is_plain(given) else codec.wire_form(given))
    if isinstance(given, Envelope):
        for name, value in _names_in(given):
            if value is not None:
                names.token(value, name)
        # A new id: an envelope that is sent twice is two calls, and a reply must find the right one.
        return Envelope(
            payload=codec.wire_form(given.payload),
            type=given.type,
            source=given.source,
            target=given.target,
            session_id=given.session_id,
            tenant=given.tenant,
            timeout_ms=given.timeout_ms,
            idempotency_key=given.idempotency_key,
            priority=given.priority,
            task_id=given.task_id,
            require=codec.wire_form(given.require),
            prefer=codec.wire_form(given.prefer),
            trigger=codec.wire_form(given.trigger),
            trace=given.trace,
            dedupe=given.dedupe,
        )
    if isinstance(given, dict) and is_envelope(given):
        return envelope_of(Envelope.from_map(given))
    return Envelope(payload=parameters_of(given))


def _names_in(given: Envelope) -> tuple[tuple[str, str | None], ...]:
    """Give what of an envelope comes to stand in subjects. Options of the same names were checked before."""
    return (
        ("target", given.target),
        ("session_id", given.session_id),
        ("task_id", given.task_id),
        ("tenant", given.tenant),
    )


def prepare(
    capability: str,
    given: object,
    options: Options,
    *,
    kind: CallKind,
    source: str,
    now: float,
    default_s: float,
    card: CapabilityCard | None = None,
) -> Call:
    """Build the call. `now` is loop time, `default_s` what the capability gets when nobody says otherwise."""
    around = current()
    envelope = envelope_of(given)
    envelope.capability = capability
    if envelope.source is None:
        envelope.source = source
    if around is not NOTHING_AROUND:
        _inherit(envelope, around)
    if options.carried:
        _apply(envelope, options)
    if not options.dedupe:
        envelope.dedupe = False
    wall_ms = int(time.time() * 1000)
    if around.trace_id is not None:
        envelope.trace = Trace(around.trace_id, ids.span_id(), [], around.started_at or wall_ms)
    elif envelope.trace is None:
        trace_id, span_id = ids.trace_and_span()
        envelope.trace = Trace(trace_id, span_id, [], wall_ms)
    if options.trace or around.wants_hops:
        # Whoever sends hops is sent them all back.
        hop = Hop(envelope.source or source, wall_ms, forwarded_to=capability)
        envelope.trace.hops = [*envelope.trace.hops, hop]
    asked_s = options.timeout_s
    if asked_s is None and envelope.timeout_ms is not None:
        asked_s = max(envelope.timeout_ms / 1000, _NO_TIME_S)
    deadline = now + (default_s if asked_s is None else asked_s)
    if around.deadline is not None and around.deadline < deadline:
        deadline = around.deadline
    if (scope := scope_deadline()) < deadline:
        deadline = scope
    call = Call(
        capability,
        kind,
        envelope,
        options,
        around,
        "rch_" + envelope.message_id,  # An id of ours: `ids.reach_id_of` says the same.
        now,
        wall_ms,
        max(now, deadline),
        card,
    )
    if envelope.task_id is not None or (around.round is not None and around.round.purses):
        call.thrifty = True
    return call


def _inherit(envelope: Envelope, around: CallContext) -> None:
    """Take over what surrounds the call where the envelope says nothing; who asks is said by the surroundings."""
    envelope.source = around.agent_id or envelope.source
    envelope.session_id = envelope.session_id or around.session_id
    envelope.task_id = envelope.task_id or around.task_id
    envelope.tenant = envelope.tenant or around.tenant
    envelope.trigger = envelope.trigger or codec.wire_form(around.trigger)
    if around.chain:
        envelope.chain = list(around.chain[-MAX_CHAIN:])


def _apply(envelope: Envelope, options: Options) -> None:
    """Let the call's options win over everything else."""
    envelope.target = options.target or envelope.target
    envelope.session_id = options.session_id or envelope.session_id
    envelope.task_id = options.task_id or envelope.task_id
    envelope.tenant = options.tenant or envelope.tenant
    envelope.trigger = codec.wire_form(options.trigger or envelope.trigger)
    envelope.require = codec.wire_form(options.require or envelope.require)
    envelope.prefer = codec.wire_form(options.prefer or envelope.prefer)
    envelope.idempotency_key = options.idempotency_key or envelope.idempotency_key
    envelope.priority = options.priority or envelope.priority


def deadline_by(call: Call, card: CapabilityCard) -> float:
    """Give the deadline that a card allows, within everything that surrounds the call."""
    around = call.around.deadline
    wanted = min(call.began + card_timeout_s(card), anyio.current_effective_deadline())
    return wanted if around is None else min(wanted, around)
