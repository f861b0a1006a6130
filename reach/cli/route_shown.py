"""Entries of the routing table as people read them: one, all, before and after a change, and explained."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.text import Text

from reach.cli import lanes as told
from reach.cli import output
from reach.wire.route import Lane, RouteEntry

if TYPE_CHECKING:
    from rich.console import RenderableType

    from reach.wire.registration import LaneExplained, RouteAnswer

_MOST_EXCEPTIONS: Final = 20
_MOST_INSTANCES: Final = 20


# ------------------------------------------------------------------------------------------------ the table


def table_shown(entries: Iterable[RouteEntry]) -> RenderableType:
    """Show all entries, a line a lane."""
    rows = [
        (entry.capability, *_lane_line(lane), _set_by_people(entry))
        for entry in entries
        for lane in told.lanes_of(entry)
    ]
    if not rows:
        return "The table is empty: no agent has registered. Start one: reach run module:agent"
    columns = ("capability", "agent", "tier#", "instances#", "weight#", "share#", "breaker", "calls#")
    return output.grid((*columns, "success#", "p50 ms#", "p99 ms#", "set"), rows)


def entry_shown(entry: RouteEntry) -> RenderableType:
    """Show one entry in full."""
    age_s = max(0.0, time.time() - entry.at / 1000)
    facts = [
        ("tiers", _tiers(entry)),
        ("strategy", told.strategy(entry.strategy)),
        ("canary", "none" if entry.canary is None else told.canary(entry.canary)),
    ]
    if entry.terms_off:
        facts.append(("terms off", ", ".join(entry.terms_off)))
    facts.append(("written", f"{output.age(age_s)} ago (term {entry.term}, revision {entry.revision})"))
    parts: list[RenderableType] = [Text(entry.capability, style="bold"), Text(""), *_facts(facts), Text("")]
    if not entry.lanes:
        parts.append(Text("Nobody serves it."))
        return Group(*parts)
    rows = [(*_lane_line(lane), _limit(lane)) for lane in told.lanes_of(entry)]
    columns = (
        "agent",
        "tier#",
        "instances#",
        "weight#",
        "share#",
        "breaker",
        "calls#",
        "success#",
        "p50 ms#",
    )
    parts.append(output.grid((*columns, "p99 ms#", "limit#"), rows))
    parts += _whys(entry.lanes)
    parts += _exceptions(entry.lanes)
    return Group(*parts)


def _facts(facts: Iterable[tuple[str, str]]) -> list[Text]:
    return [Text(f"{name:<10} ", style="dim").append(value, style="none") for name, value in facts]


def _tiers(entry: RouteEntry) -> str:
    shares = [
        str(tier.priority) if tier.share == 1 else f"{tier.priority} ({told.percent(tier.share)})"
        for tier in entry.tiers
    ]
    if not shares:
        return "none: nobody takes calls"
    resort = "; every breaker is open, this is the last resort" if entry.last_resort else ""
    return ", ".join(shares) + resort


def _lane_line(one: told.LaneShown) -> tuple[RenderableType, ...]:
    lane = one.lane or Lane(provider=one.provider)
    figures = lane.figures
    return (
        one.provider,
        str(one.priority),
        str(one.instances),
        f"{lane.weight:.3g}",
        one.share_shown,
        one.breaker_shown,
        str(figures.calls),
        "-" if figures.success is None else told.percent(figures.success),
        _ms(figures.p50_ms),
        _ms(figures.p99_ms),
    )


def _limit(one: told.LaneShown) -> str:
    return "-" if one.lane is None or one.lane.limit is None else str(one.lane.limit)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"  # noqa: PLR2004


def _whys(lanes: Iterable[Lane]) -> list[RenderableType]:
    return [
        Text.assemble(f"{lane.provider}: breaker ", told.breaker(lane.breaker), f": {lane.breaker.why}")
        for lane in lanes
        if lane.breaker.why
    ]


def _exceptions(lanes: Iterable[Lane]) -> list[RenderableType]:
    found = [one for lane in lanes for one in lane.exceptions]
    if not found:
        return []
    now = time.time()
    rows = [
        (
            one.instance,
            one.state.replace("_", " "),
            f"{one.factor:.3g}",
            "-" if not one.since else output.age(now - one.since / 1000),
            one.reason,
        )
        for one in found[:_MOST_EXCEPTIONS]
    ]
    parts = [Text(""), output.grid(("not as usual", "state", "weight#", "for#", "why"), rows)]
    if len(found) > _MOST_EXCEPTIONS:
        parts.append(Text(f"… and {len(found) - _MOST_EXCEPTIONS} more: reach ps", style="dim"))
    return parts


def _set_by_people(entry: RouteEntry) -> str:
    """Say in a few words what operators set."""
    parts = [] if entry.canary is None else [f"canary {told.canary(entry.canary)}"]
    if entry.strategy.name != "pool":
        parts.append(told.strategy(entry.strategy))
    if entry.terms_off:
        parts.append(f"without {', '.join(entry.terms_off)}")
    return "; ".join(parts)


# ------------------------------------------------------------------------------------------------ a change


def changed(answer: RouteAnswer) -> RenderableType:
    """Show what became of a change, or what would: what differs, lane by lane."""
    head = Text("✔ ", style="green") if answer.in_force else Text("dry run: ", style="yellow")
    parts: list[RenderableType] = [head.append(output.sentence(answer.message), style="none")]
    before, after = answer.before, answer.after
    if after is not None:
        parts += [Text(""), *_facts(_settings(before, after)), _difference(before, after)]
        parts += _whys(after.lanes)
    if answer.tickets:
        parts += [Text(""), Text(answer.tickets, style="dim")]
    return Group(*parts)


def _settings(before: RouteEntry | None, after: RouteEntry) -> Iterable[tuple[str, str]]:
    for name, read in (
        ("tiers", _tiers),
        ("strategy", lambda entry: told.strategy(entry.strategy)),
        ("canary", lambda entry: "none" if entry.canary is None else told.canary(entry.canary)),
        ("terms off", lambda entry: ", ".join(entry.terms_off) or "none"),
    ):
        now = read(after)
        was = now if before is None else read(before)
        if was != now:
            yield name, f"{was} → {now}"


def _difference(before: RouteEntry | None, after: RouteEntry) -> RenderableType:
    was = {} if before is None else {lane.provider: lane for lane in told.lanes_of(before)}
    rows = []
    for lane in told.lanes_of(after):
        now, then = _cells(lane), _cells(was.get(lane.provider, lane))
        rows.append(
            (
                lane.provider,
                *(one if one == other else f"{other} → {one}" for one, other in zip(now, then, strict=True)),
            )
        )
    return output.grid(("agent", "tier#", "traffic#", "weight#", "share#", "limit#", "breaker"), rows)


def _cells(one: told.LaneShown) -> tuple[str, ...]:
    lane = one.lane or Lane(provider=one.provider)
    return (
        str(one.priority),
        f"{lane.terms.traffic:.3g}",
        f"{lane.weight:.3g}",
        one.share_shown,
        _limit(one),
        lane.breaker.state.replace("_", " "),
    )


# ------------------------------------------------------------------------------------------------ explained


def explained_shown(capability: str, answer: RouteAnswer) -> RenderableType:
    """Show where a call would go, and why: a block a lane, best first."""
    parts: list[RenderableType] = [
        Text(capability, style="bold").append(f": {answer.message}", style="none"),
        Text(answer.tickets, style="dim"),
    ]
    ordered = sorted(answer.lanes, key=lambda lane: (lane.priority, -lane.share, lane.provider))
    for lane in ordered:
        parts += [Text(""), *_lane_explained(capability, lane)]
    if not ordered:
        parts.append(Text("Nobody serves it."))
    return Group(*parts)


def _lane_explained(capability: str, lane: LaneExplained) -> Iterable[RenderableType]:
    head = Text(lane.provider, style="bold")
    head.append(f"  tier {lane.priority}, {told.percent(lane.share)} of the calls", style="none")
    if lane.excluded:
        head.append(f"  left out: {lane.excluded}", style="yellow")
    yield head
    yield from (Text(f"  {line}") for line in lane.terms)
    if not lane.instances:
        return
    rows = [
        (
            f"  {one.instance}",
            one.version,
            one.state.replace("_", " "),
            f"{one.weights.get(capability, 0.0):.3g}",
            str(one.tickets.get(capability, 0)),
            one.why,
        )
        for one in lane.instances[:_MOST_INSTANCES]
    ]
    yield output.grid(("  instance", "version", "state", "weight#", "tickets#", "why"), rows)
    if len(lane.instances) > _MOST_INSTANCES:
        yield Text(
            f"  … and {len(lane.instances) - _MOST_INSTANCES} more: reach ps {lane.provider}", style="dim"
        )
