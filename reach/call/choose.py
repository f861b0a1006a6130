"""Step 3 of a call: which subject it goes to.

While nothing speaks against it the answer is the queue-group subject, and NATS picks the instance. A call that
names an agent goes to that agent's lane; one that requires something goes to an instance whose card has it;
a retry goes to an instance that has not failed this call, when one is known (behaviour RETRY-5, CALL-12).
Tiers, weights and breakers join here with the routing table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reach.wire import subjects

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reach.call.call import Call
    from reach.wire.card import Card


@dataclass(frozen=True, slots=True)
class Route:
    """Where one attempt goes; `instance` is set when it was picked by us rather than by NATS."""

    subject: str
    instance: str | None = None


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


def choose(call: Call, cards: Iterable[Card], *, pick: float) -> Route | Excluded:
    """Choose the subject of the next attempt. `cards` are the known instances; `pick` is uniform in [0, 1)."""
    envelope = call.envelope
    avoid = call.avoid or ()
    if envelope.require or envelope.prefer:
        return _by_card(call, list(cards), pick)
    if avoid:
        others = [
            card
            for card in cards
            if card.ready and card.instance not in avoid and envelope.target in {None, card.agent_id}
        ]
        if others:
            instance = others[int(pick * len(others))].instance
            return Route(subjects.inst(instance, call.capability), instance)
    if envelope.target is not None:
        return Route(subjects.lane(envelope.target, call.capability))
    return Route(subjects.cap(call.capability))


def _by_card(call: Call, cards: list[Card], pick: float) -> Route | Excluded:
    envelope = call.envelope
    lacking: list[str] = []
    fit: list[Card] = []
    for card in cards:
        if envelope.target not in {None, card.agent_id}:
            continue
        lack = unmet(card, envelope.require or {})
        if lack is None:
            fit.append(card)
        else:
            lacking.append(f"{card.instance}: {lack}")
    if not fit:
        return Excluded("; ".join(sorted(lacking)) or "no instance is known")
    avoid = call.avoid or ()
    fit = [card for card in fit if card.instance not in avoid] or fit
    if envelope.prefer:
        preferred = [card for card in fit if unmet(card, envelope.prefer) is None]
        fit = preferred or fit
    instance = fit[int(pick * len(fit))].instance
    return Route(subjects.inst(instance, call.capability), instance)
