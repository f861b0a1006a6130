"""`reach route show` and `reach route explain`: where calls go, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from reach.cli import options as opt
from reach.cli.completion import complete_capability
from reach.cli.dial import run
from reach.cli.exits import Exit, Refusal
from reach.cli.look import View, look

if TYPE_CHECKING:
    from reach.bus.connection import Connection
    from reach.call.client import Bus
    from reach.cli.supervisor import Table
    from reach.wire.registration import Explain

SHOW_EXAMPLES = (
    ("All capabilities and their lanes", "reach route show"),
    (
        "One of them, with figures, breakers and exceptions, followed",
        "reach route show invoice.extract --watch",
    ),
    ("The whole entry, for a script", "reach route show invoice.extract --json | jq '.lanes[].figures'"),
)
EXPLAIN_EXAMPLES = (
    ("Where would a call go now, and why", "reach route explain invoice.extract"),
    ("A call that needs something", "reach route explain invoice.extract --require lang=zh"),
    (
        "The call of somebody, while there is a canary",
        "reach route explain invoice.extract --caller night-batch",
    ),
)


def show(
    capability: Annotated[
        str | None,
        typer.Argument(
            metavar="CAPABILITY",
            help="Show this one in full. All of them where left out.",
            show_default=False,
            autocompletion=complete_capability,
        ),
    ] = None,
    watch: opt.Watch = False,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show the routing table: tiers, lanes, shares, breakers, what was measured, and what operators set.

    Where no supervisor answers this is the table as the last one left it, by which callers go on.
    """
    from reach.wire import names

    name = None if capability is None else names.capability(capability)

    async def take(bus: Bus) -> View:
        return await table_view(bus.connection, name)

    run(look(take, url=url, watch=watch, as_json=as_json))


def explain(
    capability: opt.Capability,
    *,
    target: opt.Target = None,
    require: opt.Require = None,
    priority: opt.Priority = None,
    caller: Annotated[
        str | None,
        typer.Option(
            "--caller", metavar="NAME", help="Who calls: named callers of a canary always go to it."
        ),
    ] = None,
    watch: opt.Watch = False,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """Route a call now, without sending it, and say why: the terms of each weight, who is left out, tickets.

    A lane's weight is the product of its terms; its share follows from the weights of its tier. Tickets are whole
    numbers: the rounding error says how far plain NATS clients are off the wanted shares.
    """
    asked = _asked(capability, target=target, require=require, priority=priority, caller=caller)

    async def take(bus: Bus) -> View:
        return await explained_view(bus.connection, asked)

    run(look(take, url=url, watch=watch, as_json=as_json))


def _asked(
    capability: str,
    *,
    target: str | None,
    require: list[str] | None,
    priority: str | None,
    caller: str | None,
) -> Explain:
    from reach.cli.call import priority_of
    from reach.cli.params import pairs
    from reach.cli.supervisor import operator
    from reach.wire import names
    from reach.wire.registration import Explain

    return Explain(
        by=operator(),
        capability=names.capability(capability),
        caller=caller,
        target=target,
        priority=priority_of(priority) or "normal",
        require=pairs(require or (), option="--require") or {},
    )


async def table_view(connection: Connection, name: str | None) -> View:
    """Read the table, or one entry of it. Raises `Refusal` (1) for a capability that nobody ever served."""
    from reach.cli import supervisor
    from reach.cli.route_shown import entry_shown, table_shown

    table = await supervisor.read_table(connection)
    note = "" if table.led else f"{supervisor.NOBODY_LEADS}: this is the table as the last one left it."
    if name is None:
        found = [table.entries[tag] for tag in sorted(table.entries)]
        return View([one.model_dump(mode="json") for one in found], table_shown(found), note)
    entry = table.entries.get(name)
    if entry is None:
        raise _unknown(name, table)
    return View(entry.model_dump(mode="json"), entry_shown(entry), note)


def _unknown(name: str, table: Table) -> Refusal:
    import difflib

    near = difflib.get_close_matches(name, table.entries, n=3)
    hint = f"Near it: {', '.join(near)}." if near else "What there is: reach route show"
    return Refusal(Exit.FAILED, f"The table knows no {name}.", fix=hint)


async def explained_view(connection: Connection, asked: Explain) -> View:
    """Have the supervisor route a call, and show what it says. Raises `Refusal`."""
    from reach.cli import supervisor
    from reach.cli.route_shown import explained_shown
    from reach.wire.registration import RouteVerb

    answer = await supervisor.order(connection, RouteVerb.EXPLAIN, asked)
    return View(answer.model_dump(mode="json"), explained_shown(asked.capability, answer))
