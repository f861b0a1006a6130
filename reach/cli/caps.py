"""`reach caps`: what can be called, by whom it is served, and how calls are divided.

What a capability takes and gives is on its agents' cards; who gets which share of the calls is in the routing table.
Without a supervisor there are only the cards, as the agents show them when they are asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reach.cli import options as opt
from reach.cli.completion import complete_capability
from reach.cli.dial import run
from reach.cli.exits import Exit, Refusal
from reach.cli.look import View, look

if TYPE_CHECKING:
    from rich.console import RenderableType

    from reach.call.client import Bus
    from reach.cli.lanes import LaneShown
    from reach.cli.roster import Offer
    from reach.cli.supervisor import Table
    from reach.wire.card import Card

EXAMPLES = (
    ("Everything that can be called", "reach caps"),
    ("One capability: its parameters, its lanes, and a call to copy", "reach caps invoice.extract"),
    ("Its JSON Schema", "reach caps invoice.extract --json | jq .input_schema"),
    (
        "What has lost all its lanes, for a script",
        """reach caps --json | jq '.[] | select(all(.lanes[]; .share == 0)).capability'""",
    ),
)


@dataclass(frozen=True, slots=True)
class Served:
    """A capability: what its cards say, and its lanes."""

    offer: Offer
    lanes: list[LaneShown]

    def to_map(self, *, full: bool) -> dict[str, Any]:
        """Give it for programs; the schemas only when `full`."""
        return {**self.offer.to_map(full=full), "lanes": [lane.to_map() for lane in self.lanes]}


def caps(
    capability: Annotated[
        str | None,
        typer.Argument(
            metavar="CAPABILITY",
            help="Show this one: its parameters, its lanes, and a call to copy.",
            show_default=False,
            autocompletion=complete_capability,
        ),
    ] = None,
    watch: opt.Watch = False,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show what can be called, who serves it, and how calls are divided.

    A line is a lane: one agent's instances of one capability. Tier 10 is used before 20; share is the part of the
    calls that the lane gets now. `reach route explain` says why.
    """
    from reach.wire import names

    name = None if capability is None else names.capability(capability)

    async def take(bus: Bus) -> View:
        return await _view(bus, name)

    run(look(take, url=url, watch=watch, as_json=as_json))


async def _view(bus: Bus, name: str | None) -> View:
    from reach.cli import supervisor
    from reach.cli.roster import read_cards

    cards, table = await asyncio.gather(read_cards(bus.connection), supervisor.read_table(bus.connection))
    found = served(cards, table)
    note = "" if table.led else f"{supervisor.NOBODY_LEADS}: this is what the agents say themselves."
    if name is None:
        return View([one.to_map(full=False) for one in found], _table(found), note)
    for one in found:
        if one.offer.card.tag == name:
            return View(one.to_map(full=True), _described(one), note)
    raise _unknown(name, found)


def served(cards: list[Card], table: Table) -> list[Served]:
    """Put cards and lanes side by side; without anybody who leads, lanes are as the cards have them."""
    from reach.cli.lanes import is_over, lanes_in, lanes_of
    from reach.cli.roster import offers

    found = []
    for offer in [*offers(cards), *(_silent(cards, table) if table.led else ())]:
        tag = offer.card.tag
        entry = table.entries.get(tag) if table.led else None
        # Tasks are pulled from a queue: they have no lanes, and so no entry.
        known = lanes_of(entry) if entry is not None else []
        lanes = [one for one in known if one.lane is None or not is_over(one.lane)]
        found.append(Served(offer, lanes or lanes_in(cards, tag)))
    return sorted(found, key=lambda one: one.offer.card.tag)


def _silent(cards: list[Card], table: Table) -> Iterable[Offer]:
    """Offer what stands in the table while none of its agents answers: stopped ones, or ones just gone."""
    from reach.cli.lanes import is_over
    from reach.cli.roster import Offer
    from reach.wire.card import CapabilityCard

    said = {one.tag for card in cards for one in card.capabilities}
    for tag, entry in table.entries.items():
        lanes = [lane for lane in entry.lanes if not is_over(lane)]
        if lanes and tag not in said:
            yield Offer(
                card=CapabilityCard(tag=tag, description="Its agents do not answer right now."),
                providers=tuple(sorted(lane.provider for lane in lanes)),
                instances=sum(lane.instances for lane in lanes),
            )


def _table(found: Iterable[Served]) -> RenderableType:
    from reach.cli import output

    rows = [
        (
            one.offer.card.tag,
            one.offer.card.kind,
            lane.provider,
            str(lane.instances),
            str(lane.priority),
            lane.share_shown,
            lane.breaker_shown,
            "yes" if one.offer.card.idempotent else "no",
            one.offer.summary,
        )
        for one in found
        for lane in one.lanes
    ]
    if not rows:
        return "Nothing can be called: no agent is there. Start one: reach run module:agent"
    columns = ("capability", "kind", "agent", "instances#", "tier#", "share#", "breaker", "idempotent")
    return output.grid((*columns, "what it does"), rows)


def _described(one: Served) -> RenderableType:
    from reach.cli import output
    from reach.cli.offer import described

    if all(lane.lane is None for lane in one.lanes):
        return described(one.offer)
    columns = ("agent", "instances#", "tier#", "share#", "breaker")
    rows = [
        (lane.provider, str(lane.instances), str(lane.priority), lane.share_shown, lane.breaker_shown)
        for lane in one.lanes
    ]
    return described(one.offer, lanes=output.grid(columns, rows))


def _unknown(capability: str, found: list[Served]) -> Refusal:
    import difflib

    near = difflib.get_close_matches(capability, [one.offer.card.tag for one in found], n=3)
    hint = f"Near it: {', '.join(near)}." if near else "What there is: reach caps"
    return Refusal(Exit.FAILED, f"Nobody serves {capability}.", fix=hint)
