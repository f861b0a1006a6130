"""`reach ps` and `reach caps`: who is there, and what can be called.

Both ask the agents themselves, over NATS's service API, so they show what answers and not what should.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reach.cli import options as opt
from reach.cli.completion import complete_capability
from reach.cli.dial import open_bus, run
from reach.cli.exits import Exit, Refusal

if TYPE_CHECKING:
    from rich.console import RenderableType

    from reach.call.client import Bus
    from reach.cli.roster import Offer, Present

PS_EXAMPLES = (
    ("All instances", "reach ps"),
    ("Followed, each second", "reach ps --watch"),
    (
        "The instances of one agent, for a script",
        """reach ps --json | jq '.[] | select(.agent == "billing")'""",
    ),
)
CAPS_EXAMPLES = (
    ("Everything that can be called", "reach caps"),
    ("One capability: its parameters, and a call to copy", "reach caps invoice.extract"),
    ("Its JSON Schema", "reach caps invoice.extract --json | jq .input_schema"),
)

_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class View:
    """One look: for programs, and for people."""

    data: Any
    shown: RenderableType


def ps(watch: opt.Watch = False, url: opt.Url = None, as_json: opt.AsJson = False) -> None:
    """Show the instances that are there, what they serve and how busy they are."""
    run(_look(_instances, url=url, watch=watch, as_json=as_json))


def caps(
    capability: Annotated[
        str | None,
        typer.Argument(
            metavar="CAPABILITY",
            help="Show this one: its parameters, and a call to copy.",
            show_default=False,
            autocompletion=complete_capability,
        ),
    ] = None,
    watch: opt.Watch = False,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show what can be called, and who serves it."""
    from reach.wire import names

    if capability is None:
        run(_look(_offers, url=url, watch=watch, as_json=as_json))
        return
    name = names.capability(capability)

    async def one(bus: Bus) -> View:
        return await _offer(bus, name)

    run(_look(one, url=url, watch=watch, as_json=as_json))


async def _look(
    take: Callable[[Bus], Awaitable[View]], *, url: str | None, watch: bool, as_json: bool
) -> None:
    from reach.cli import output

    async with open_bus(url) as bus:
        if watch:
            await _follow(take, bus, as_json=as_json)
            return
        view = await take(bus)
    if as_json:
        output.print_json(view.data)
    else:
        output.show(view.shown)


async def _follow(take: Callable[[Bus], Awaitable[View]], bus: Bus, *, as_json: bool) -> None:
    """Show it again and again: in place on a terminal, one JSON document a line for programs."""
    import sys

    from rich.live import Live

    from reach.cli import output

    if as_json or not sys.stdout.isatty():
        while True:
            view = await take(bus)
            if as_json:
                output.line(output.compact(view.data))
            else:
                output.show(view.shown)
                output.line("")
            await asyncio.sleep(_EVERY_S)
    with Live(console=output.console(sys.stdout), auto_refresh=False) as live:
        while True:
            live.update((await take(bus)).shown, refresh=True)
            await asyncio.sleep(_EVERY_S)


# --------------------------------------------------------------------------------------------------- instances


async def _instances(bus: Bus) -> View:
    from reach.cli.roster import read_present

    present = sorted(
        await read_present(bus.connection), key=lambda one: (one.card.agent_id, one.card.instance)
    )
    return View([one.to_map() for one in present], _instance_table(present))


def _instance_table(present: list[Present]) -> RenderableType:
    from reach.cli import output

    if not present:
        return "No instance is there. Start an agent: reach run module:agent"
    rows = []
    for one in present:
        tags = [capability.tag for capability in one.card.capabilities]
        more = f" +{len(tags) - 3}" if len(tags) > 3 else ""  # noqa: PLR2004 - what fits a line
        rows.append(
            (
                one.card.agent_id,
                one.card.instance,
                one.card.version,
                ", ".join(tags[:3]) + more,
                output.age(one.uptime_s),
                "-" if one.inflight is None else str(one.inflight),
                str(one.requests),
                str(one.errors),
            )
        )
    columns = ("agent", "instance", "version", "serves", "up#", "in work#", "calls#", "errors#")
    return output.grid(columns, rows)


# ------------------------------------------------------------------------------------------------ capabilities


async def _offers(bus: Bus) -> View:
    from reach.cli import output
    from reach.cli.roster import offers, read_cards

    found = offers(await read_cards(bus.connection))
    data = [one.to_map(full=False) for one in found]
    if not found:
        return View(data, "Nothing can be called: no agent is there. Start one: reach run module:agent")
    rows = [
        (
            one.card.tag,
            one.card.kind,
            ", ".join(one.providers),
            str(one.instances),
            "yes" if one.card.idempotent else "no",
            one.summary,
        )
        for one in found
    ]
    columns = ("capability", "kind", "agents", "instances#", "idempotent", "what it does")
    return View(data, output.grid(columns, rows))


async def _offer(bus: Bus, capability: str) -> View:
    from reach.cli.offer import described
    from reach.cli.roster import offers, read_cards

    found = offers(await read_cards(bus.connection))
    for one in found:
        if one.card.tag == capability:
            return View(one.to_map(full=True), described(one))
    raise _unknown(capability, found)


def _unknown(capability: str, found: list[Offer]) -> Refusal:
    import difflib

    near = difflib.get_close_matches(capability, [one.card.tag for one in found], n=3)
    hint = f"Near it: {', '.join(near)}." if near else "What there is: reach caps"
    return Refusal(Exit.FAILED, f"Nobody serves {capability}.", fix=hint)
