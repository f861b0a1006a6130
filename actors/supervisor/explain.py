"""In words: who there is, and where a call would go now and why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from actors.supervisor.governor import Governor
from actors.supervisor.letters import Moment
from actors.supervisor.roster import Member
from actors.supervisor.table import LanePlan, Plan
from reach.policy.canary import belongs
from reach.policy.lease import State
from reach.policy.tier import Bar, Phase, may_use_last_resort
from reach.wire.card import Card
from reach.wire.registration import Explain, InstanceRow, LaneExplained, RouteAnswer

_BARRED = {
    Bar.EMPTY: "no instance takes calls",
    Bar.BREAKER: "its breaker keeps calls away",
    Bar.FORCED: "an operator took it out",
    Bar.FULL: "it is full",
    Bar.UNFIT: "it lacks what the call requires",
}


def explained(governor: Governor, asked: Explain, moment: Moment) -> RouteAnswer:
    """Route a call now, without sending it."""
    plan = governor.planner.look(asked.capability, moment.now, moment.at_ms, trial=True)
    lanes = tuple(_lane(governor, plan, lane, asked, moment) for lane in plan.lanes)
    return RouteAnswer(
        in_force=False,
        message=_message(plan, asked),
        after=governor.planner.entries.get(asked.capability),
        lanes=lanes,
        tickets=plan.tickets.explain(),
    )


def _message(plan: Plan, asked: Explain) -> str:
    told = {
        Phase.NOBODY: "nobody takes calls",
        Phase.SETTLED: "calls go to tier {tiers}",
        Phase.RETURNING: "calls return gradually: {tiers}",
        Phase.LAST_RESORT: "every lane's breaker is open; tier {tiers} is kept as the last resort",
    }[plan.tiers.phase]
    tiers = ", ".join(
        f"{tier} ({share:.0%})" if share < 1 else str(tier) for tier, share in plan.tiers.shares
    )
    parts = [told.format(tiers=tiers)]
    if plan.tiers.phase is Phase.LAST_RESORT and not may_use_last_resort(asked.priority):
        parts.append(f"{asked.priority} calls get the fallback")
    canary = plan.entry.canary
    if canary is not None:
        always = asked.caller in canary.callers
        parts.append(
            f"{asked.caller} always goes to the canary"
            if always
            else f"{canary.percent:g} % go to the canary"
        )
    return "; ".join(parts)


def _lane(governor: Governor, plan: Plan, lane: LanePlan, asked: Explain, moment: Moment) -> LaneExplained:
    fit = [member for member in lane.members.values() if lacks(member.card, asked.require) is None]
    excluded = ""
    if asked.target not in {None, lane.provider}:
        excluded = f"the call names {asked.target}"
    elif lane.offer.bar is not None:
        excluded = _BARRED[lane.offer.bar]
        if lane.input.breaker.why:
            excluded = f"{excluded}: {lane.input.breaker.why}"
    elif not fit:
        excluded = _BARRED[Bar.UNFIT]
    elif lane.priority not in {priority for priority, _ in plan.tiers.shares}:
        excluded = "a better tier is in use"
    return LaneExplained(
        provider=lane.provider,
        priority=lane.priority,
        share=lane.share,
        weight=lane.weight.value,
        terms=lane.weight.explain(),
        excluded=excluded,
        breaker=lane.input.breaker.state,
        instances=tuple(
            _row(governor, member, moment, why=_why(lane, plan, member, asked))
            for member in list(lane.members.values())[:200]
        ),
    )


def _why(lane: LanePlan, plan: Plan, member: Member, asked: Explain) -> str:
    lack = lacks(member.card, asked.require)
    if lack is not None:
        return f"it lacks {lack}"
    canary = plan.entry.canary
    standing = lane.standings.get(member.name)
    told = "" if standing is None else standing.why
    if canary is not None and belongs(canary, version=member.card.version, labels=member.card.labels):
        return f"{told}; canary" if told else "canary"
    return told


def lacks(card: Card, require: dict[str, Any]) -> str | None:
    """Name the first requirement that a card does not meet; None when it meets all (CALL-12)."""
    for key, wanted in require.items():
        if key == "lang":
            met = wanted in card.supported_langs
        elif key in {"version", "region"}:
            met = getattr(card, key) == wanted
        else:
            met = card.labels.get(key) == str(wanted)
        if not met:
            return f"{key}={wanted!r}"
    return None


def rows(governor: Governor, members: Iterable[Member], moment: Moment) -> list[InstanceRow]:
    """Give a row for each of these instances."""
    return [_row(governor, member, moment) for member in members]


def _row(governor: Governor, member: Member, moment: Moment, *, why: str | None = None) -> InstanceRow:
    card = member.card
    weights: dict[str, float] = {}
    told = ""
    for capability in member.serves:
        plan = governor.planner.plans.get(capability)
        lane = None if plan is None else next((one for one in plan.lanes if member.name in one.members), None)
        if lane is not None:
            weights[capability] = lane.factor(member.name)
            standing = lane.standings.get(member.name)
            told = told or ("" if standing is None else standing.why)
    lease = governor.roster.leases.state(member.name)
    state = member.state or lease.value
    if lease is State.LEFT and not member.linked:
        state, told = lease.value, "it said goodbye"
    return InstanceRow(
        instance=member.name,
        agent_id=card.agent_id,
        generation=card.generation,
        version=card.version,
        region=card.region,
        labels=card.labels,
        state=state,
        why=told if why is None else why,
        ready=member.ready,
        heard_s=max(0.0, moment.now - member.heard_at),
        inflight=member.inflight,
        queue=member.queue,
        cpu=member.cpu,
        rss_bytes=member.rss_bytes,
        loop_lag_ms=member.loop_lag_ms,
        tickets=governor.orders.held(member.name),
        weights=weights,
    )
