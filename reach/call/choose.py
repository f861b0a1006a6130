"""Step 3 of a call: which subject it goes to.

While nothing speaks against it the answer is the queue-group subject, and NATS picks the instance; the pipeline does
not even come here. Otherwise the lanes of the best tier that has a usable one are looked at: a lane whose breaker
is open, that is full, or that lacks what the call requires is out, and what it lacks is kept (behaviour ROUTE-1,
ROUTE-9, CALL-12). A lane that is to be probed is given to a call that may be repeated, or to whoever has no other;
where none of those has come for ten seconds (ours), to any, since who is never asked is never found to be well.
Within a lane NATS picks again, unless instances of it have just failed (RETRY-5).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from reach.faults import Reason
from reach.policy.permits import Pass, Permit, Refused
from reach.wire import subjects
from reach.wire.reply import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from reach.call.call import Call
    from reach.call.lanes import AnyPermit, Lane, Lanes
    from reach.wire.card import Card


PATIENCE_S: Final = 10.0
"""How long a lane that is due to be probed waits for a call that may be repeated; as long as a first opening lasts."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where one attempt goes.

    `instance` and `lane` are set when they were picked by us rather than by NATS; `permit` makes it a probe;
    `level` counts the tiers that were passed over.
    """

    subject: str
    instance: str | None = None
    lane: Lane | None = None
    permit: AnyPermit | None = None
    level: int = 0


@dataclass(frozen=True, slots=True)
class Excluded:
    """Nobody qualifies; `why` names each agent and what it lacks."""

    why: str


def unmet(card: Card, require: dict[str, Any]) -> str | None:
    """Name the first requirement that a card does not meet, or None.

    `lang` is looked up in `supported_langs`, `version` and `region` in the fields of that name, everything
    else in `labels`.
    """
    for key, wanted in require.items():
        if key == "lang":
            has: object = card.supported_langs
            met = wanted in card.supported_langs
        elif key in {"version", "region"}:
            has = getattr(card, key)
            met = has == wanted
        else:
            has = card.labels.get(key)
            met = has is not None and has == str(wanted)
        if not met:
            return f"{key}={wanted!r} (has {_shown(has)})"
    return None


def _shown(has: object) -> str:
    if isinstance(has, tuple):
        return ", ".join(map(repr, has)) or "none"
    return repr(has) if has else "none"


@dataclass(slots=True)
class _Offer:
    """One lane: its instances that fit, and what was found about it."""

    provider: str
    tier: int
    lane: Lane
    cards: list[Card] = field(default_factory=list)


def choose(
    call: Call, cards: Iterable[Card], *, lanes: Lanes, now: float, pick: float
) -> Route | Excluded | Failure:
    """Choose where the next attempt goes.

    `cards` are the known instances, `now` loop seconds, `pick` is uniform in [0, 1). A `Failure` says that lanes are
    there, but none may be used: `BREAKER_OPEN` or `OVERLOADED`, with when to come again.
    """
    envelope = call.envelope
    fit, lacking = fitting(call, cards)
    if not fit:
        if lacking or envelope.require or envelope.prefer:
            return Excluded("; ".join(sorted(lacking)) or "no instance is known")
        return _uncharted(call, lanes, now)
    offers = _offers(call, fit, lanes)
    refused: list[Refusal] = []
    tiers = sorted({offer.tier for offer in offers})
    for level, tier in enumerate(tiers):
        if call.avoid and tier != tiers[-1] and _is_spent(call.avoid, offers, tier):
            continue  # All of it has failed this call: elsewhere is the next tier (RETRY-1).
        here = [offer for offer in offers if offer.tier == tier]
        usable, probing = usable_of(
            here, call, now, refused, barred=lambda offer: _full(offer, call.capability)
        )
        if probing is not None and (not usable or may_probe(call, probing[0].lane, now)):
            offer, permit = probing
            return _within(call, offer, lanes, now, pick, permit=permit, level=level)
        if probing is not None:
            lanes.left(probing[0].lane, now, probing[1])
        if usable:
            avoid = lanes.avoided(call.capability, now) | (call.avoid or frozenset())
            fresh = [offer for offer in usable if not all(card.instance in avoid for card in offer.cards)]
            offer, share = _one_of(fresh or usable, pick)
            touched = bool(avoid) and any(card.instance in avoid for one in offers for card in one.cards)
            whole = len(tiers) == 1 and len(usable) == len(offers) and not touched
            return _within(call, offer, lanes, now, share, level=level, whole=whole)
    return _last_resort(call, offers, lanes, now, pick) or nobody(refused)


def may_probe(call: Call, lane: Lane, now: float) -> bool:
    """Whether a call that could go elsewhere is one to find out with whether a lane is well again."""
    breaker = lane.breaker_of(call.envelope.priority)
    return call.idempotent or call.keyed or now >= breaker.open_until + PATIENCE_S


def _is_spent(avoid: set[str], offers: list[_Offer], tier: int) -> bool:
    return all(card.instance in avoid for offer in offers if offer.tier == tier for card in offer.cards)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a lane was not used: its breaker is open, or it is full."""

    lane: Lane
    why: str
    retry_after_s: float | None
    full: bool = False


def fitting(call: Call, cards: Iterable[Card]) -> tuple[list[Card], list[str]]:
    """Give the instances that meet what the call requires, the preferred ones where there are any."""
    envelope = call.envelope
    fit: list[Card] = []
    lacking: list[str] = []
    for card in cards:
        if not card.ready or envelope.target not in {None, card.agent_id}:
            continue
        lack = unmet(card, envelope.require) if envelope.require else None
        if lack is None:
            fit.append(card)
        else:
            lacking.append(f"{card.instance}: {lack}")
    if envelope.prefer and (preferred := [card for card in fit if unmet(card, envelope.prefer) is None]):
        return preferred, lacking
    return fit, lacking


def _offers(call: Call, fit: list[Card], lanes: Lanes) -> list[_Offer]:
    offers: dict[str, _Offer] = {}
    for card in fit:
        offer = offers.get(card.agent_id)
        if offer is None:
            tier = next((one.priority for one in card.capabilities if one.tag == call.capability), 10)
            lane = lanes.of(call.capability, card.agent_id)
            offer = offers[card.agent_id] = _Offer(card.agent_id, tier, lane)
        offer.cards.append(card)
    return list(offers.values())


class _OfLane(Protocol):
    """Something that stands for one lane."""

    @property
    def lane(self) -> Lane:
        """The lane."""
        ...


Offered = TypeVar("Offered", bound=_OfLane)


def usable_of(
    offers: Iterable[Offered],
    call: Call,
    now: float,
    refused: list[Refusal],
    *,
    barred: Callable[[Offered], Refusal | None],
) -> tuple[list[Offered], tuple[Offered, Permit] | None]:
    """Give the lanes of one tier that may be used, and one that wants to be probed; the others go to `refused`.

    `barred` says what keeps the call from a lane beside its breaker.
    """
    usable: list[Offered] = []
    probing: tuple[Offered, Permit] | None = None
    for offer in offers:
        refusal = barred(offer)
        if refusal is not None:
            refused.append(refusal)
            continue
        lane = offer.lane
        breaker = lane.breaker_of(call.envelope.priority)
        if probing is not None and not breaker.closed:
            continue  # One probe at a time is what one call can be.
        verdict = breaker.admit(now, priority=call.envelope.priority, expires_at=call.deadline)
        if isinstance(verdict, Permit):
            probing = offer, verdict
        elif isinstance(verdict, Pass):
            usable.append(offer)
        else:
            refused.append(Refusal(lane, verdict.why, verdict.retry_after_s))
    return usable, probing


def _full(offer: _Offer, capability: str) -> Refusal | None:
    lane = offer.lane
    lane.limit = limit_of(offer.cards, capability)
    if not lane.full:
        return None
    return Refusal(lane, f"{lane.open} of {lane.limit} calls under way", None, full=True)


def limit_of(cards: Iterable[Card], capability: str) -> int | None:
    """Give the calls that one caller may have under way at a lane, as its cards say; None for no limit."""
    limits = [
        one.limits.of_lane
        for card in cards
        for one in card.capabilities
        if one.tag == capability and one.limits is not None
    ]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def _one_of(usable: list[_Offer], pick: float) -> tuple[_Offer, float]:
    """Pick a lane, each weighed by its number of instances; gives what is left of the random number."""
    at = pick * sum(len(offer.cards) for offer in usable)
    for offer in usable[:-1]:
        if at < len(offer.cards):
            return offer, at / len(offer.cards)
        at -= len(offer.cards)
    offer = usable[-1]
    return offer, min(at / len(offer.cards), _BELOW_ONE)


_BELOW_ONE = 1.0 - 2**-53


def _within(
    call: Call,
    offer: _Offer,
    lanes: Lanes,
    now: float,
    pick: float,
    *,
    permit: Permit | None = None,
    level: int = 0,
    whole: bool = False,
) -> Route:
    """Choose within a lane: NATS does, unless some of its instances have just failed, or are not meant.

    `whole` says that every lane of the capability is as good: then it is the queue group's to choose.
    """
    envelope, lane = call.envelope, offer.lane
    avoid = lanes.avoided(call.capability, now) | (call.avoid or frozenset())
    meant = bool(envelope.require or envelope.prefer)
    if meant or any(card.instance in avoid for card in offer.cards):
        others = [card for card in offer.cards if card.instance not in avoid]
        if others or meant:
            chosen = others or offer.cards
            instance = chosen[int(pick * len(chosen))].instance
            return Route(subjects.inst(instance, call.capability), instance, lane, permit, level)
    elif whole and envelope.target is None and lane.limit is None:
        return Route(subjects.cap(call.capability))
    return Route(subjects.lane(offer.provider, call.capability), None, lane, permit, level)


def _last_resort(call: Call, offers: list[_Offer], lanes: Lanes, now: float, pick: float) -> Route | None:
    """Give a lane whose breaker is open to a `core` call that has no other (BREAK-5)."""
    priority = call.envelope.priority
    if priority != "core":
        return None
    tiers = sorted({offer.tier for offer in offers})
    for offer in sorted(offers, key=lambda offer: offer.tier):
        lane = offer.lane
        if lane.full:
            continue
        verdict = lane.breaker_of(priority).admit(
            now, priority=priority, expires_at=call.deadline, last_usable=True
        )
        if not isinstance(verdict, Refused):
            permit = verdict if isinstance(verdict, Permit) else None
            return _within(call, offer, lanes, now, pick, permit=permit, level=tiers.index(offer.tier))
    return None


def _uncharted(call: Call, lanes: Lanes, now: float) -> Route | Failure:
    """Choose without any card: by name where one is given, else the group, unless all that ever answered is out."""
    envelope = call.envelope
    if envelope.target is not None:
        lane = lanes.of(call.capability, envelope.target)
        verdict = lane.breaker_of(envelope.priority).admit(
            now, priority=envelope.priority, expires_at=call.deadline, last_usable=True
        )
        subject = subjects.lane(envelope.target, call.capability)
        if isinstance(verdict, Permit):
            return Route(subject, None, lane, verdict)
        if isinstance(verdict, Pass):
            return Route(subject, None, lane)
        return nobody([Refusal(lane, verdict.why, verdict.retry_after_s)])
    refused = []
    for lane in lanes.known(call.capability):
        verdict = lane.breaker_of(envelope.priority).admit(
            now, priority=envelope.priority, expires_at=call.deadline, last_usable=True
        )
        if isinstance(verdict, Permit):
            return Route(subjects.cap(call.capability), None, lane, verdict)
        if isinstance(verdict, Pass):
            return Route(subjects.cap(call.capability))
        refused.append(Refusal(lane, verdict.why, verdict.retry_after_s))
    return nobody(refused) if refused else Route(subjects.cap(call.capability))


def nobody(refused: list[Refusal]) -> Failure:
    """Say that there are lanes, and why none of them may be used."""
    waits = [refusal.retry_after_s for refusal in refused if refusal.retry_after_s is not None]
    again_ms = int(min(waits) * 1000) + 1 if waits else None
    full = [refusal for refusal in refused if refusal.full]
    if full:
        lane = full[0].lane
        limit = {
            "name": f"calls of {lane.capability} at {lane.provider}",
            "owner": "this process",
            "used": lane.open,
            "allowed": lane.limit or 0,
        }
        message = f"every lane of {lane.capability} is full here ({lane.provider}: {full[0].why})"
        return Failure.of(Reason.OVERLOADED, message, retry_after_ms=again_ms or 100, limit=limit)
    return Failure.of(Reason.BREAKER_OPEN, retry_after_ms=again_ms)
