"""`reach outcomes ls`, `show`, `resolve`: calls of which nobody knows whether they were done, and what became of them.

The list is the platform's; a resolution is one command to it, and the first one holds. A call that is sent again is
sent from here, once it is resolved as that, under the key it had, or under one that is made of its id: so it runs once,
whoever else tries.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reach.cli import options as opt
from reach.cli.completion import complete_capability
from reach.cli.dial import open_bus, run
from reach.cli.exits import usage

if TYPE_CHECKING:
    from reach.call.client import Bus
    from reach.call.options import CallOptions
    from reach.cli.look import View
    from reach.wire.reply import Reply
    from reach.wire.unknown import UnknownOutcome, UnknownRow, Verdict

LS_EXAMPLES = (
    ("What nobody has looked into", "reach outcomes ls"),
    ("Of these, of the last day", "reach outcomes ls --capability 'ledger.*' --since 24h"),
    ("Those that are resolved, too, by whom and how", "reach outcomes ls --all"),
)
SHOW_EXAMPLES = (
    ("Who called what, who had it, and what to check", "reach outcomes show rch_7aytd4gy5osnh5z7"),
)
RESOLVE_EXAMPLES = (
    (
        "It was done: whoever repeats it gets this result",
        """reach outcomes resolve rch_7aytd4gy5osnh5z7 executed --result '{"entry": 17}'""",
    ),
    (
        "It was not done: whoever repeats it has it done",
        """reach outcomes resolve rch_7aytd4gy5osnh5z7 not-executed --note "no entry in the ledger" """.strip(),
    ),
    ("It was not done: do it now", "reach outcomes resolve rch_7aytd4gy5osnh5z7 retry"),
)

Id = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The call's reach_id; the id of its message, or of the task.", show_default=False
    ),
]


def ls(
    *,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Those that are resolved, too.")] = False,
    capability: Annotated[
        str | None,
        typer.Option(
            "--capability",
            "-c",
            metavar="NAME",
            help="Only of this one, or of all below: ledger.*",
            autocompletion=complete_capability,
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only of so long ago or less: 30m, 24h.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="TENANT", help="Only of this tenant.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=500, metavar="N", help="At most so many.")
    ] = 100,
    watch: opt.Watch = False,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """List calls whose outcome is unknown, the newest first."""
    from reach.cli.look import look
    from reach.cli.params import duration
    from reach.cli.supervisor import operator
    from reach.wire.unknown import ListUnknowns

    span_s = None if since is None else duration(since, option="--since")

    async def take(bus: Bus) -> View:
        asked = ListUnknowns(
            by=operator(),
            resolved=everything,
            capability=capability,
            tenant=tenant,
            since=0 if span_s is None else max(0, int((time.time() - span_s) * 1000)),
            limit=limit,
        )
        return await _listed(bus, asked)

    run(look(take, url=url, watch=watch, as_json=as_json))


def show(name: Id, *, url: opt.Url = None, as_json: opt.AsJson = False) -> None:
    """Show one: what was called, by whom, who had it, why nobody knows, and what to check."""
    run(_show(name, url=url, as_json=as_json))


def resolve(
    name: Id,
    verdict: Annotated[
        str,
        typer.Argument(metavar="VERDICT", help="executed, not-executed, or retry.", show_default=False),
    ],
    *,
    result: Annotated[
        str | None,
        typer.Option(
            "--result", metavar="JSON", help="With executed: what whoever repeats the call is given."
        ),
    ] = None,
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Why; it is kept.")] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="With retry: send it once more, under the same key, though it was resolved so before.",
        ),
    ] = False,
    timeout: opt.Timeout = None,
    by: opt.By = None,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """Say what became of a call, once somebody has found out. The first word holds.

    executed: whoever repeats the call under its key gets the result that you give, and it is never done again.
    not-executed: whoever repeats it has it done. retry: it is done now, and its result is printed.
    """
    from reach.cli.params import duration

    wanted = _verdict(verdict)
    if result is not None and wanted != "executed":
        raise usage("--result goes with executed.")
    asked = {
        "id": name,
        "verdict": wanted,
        "note": note or "",
        "again": again,
        "result": None if result is None else _json(result),
    }
    timeout_s = None if timeout is None else duration(timeout, option="--timeout")
    run(_resolve(asked, timeout_s=timeout_s, by=by, url=url, as_json=as_json))


COMMANDS = (
    ("ls", ls, LS_EXAMPLES),
    ("show", show, SHOW_EXAMPLES),
    ("resolve", resolve, RESOLVE_EXAMPLES),
)
"""The commands of the group, with what their help shows."""


# ------------------------------------------------------------------------------------------------ looking


async def _listed(bus: Bus, asked: Any) -> View:
    from reach.cli.look import View
    from reach.cli.outcomes_shown import ask, table
    from reach.wire.unknown import UnknownVerb

    answer = await ask(bus.connection, UnknownVerb.LIST, asked)
    return View(answer.model_dump(exclude_none=True), table(answer.rows, total=answer.open))


async def _show(name: str, *, url: str | None, as_json: bool) -> None:
    from reach.cli import output
    from reach.cli.outcomes_shown import ask, in_words
    from reach.cli.supervisor import operator
    from reach.wire.unknown import ShowUnknown, UnknownVerb

    async with open_bus(url) as bus:
        answer = await ask(bus.connection, UnknownVerb.SHOW, ShowUnknown(by=operator(), id=name))
    if as_json:
        output.print_json(answer.model_dump(exclude_none=True))
        return
    for row in answer.rows:
        output.show(in_words(row, answer.key))


# ------------------------------------------------------------------------------------------------ resolving


def _verdict(text: str) -> Verdict:
    from reach.wire.unknown import Verdict

    try:
        return Verdict(text.replace("_", "-"))
    except ValueError:
        raise usage(f"{text!r} is no verdict.", fix=f"Right would be: {', '.join(Verdict)}") from None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise usage(
            f"--result is not JSON: {error}.", fix="""Text needs quotes: --result '"done"'"""
        ) from None


async def _resolve(
    asked: dict[str, Any], *, timeout_s: float | None, by: str | None, url: str | None, as_json: bool
) -> None:
    from reach.cli import output
    from reach.cli.outcomes_shown import ask
    from reach.cli.supervisor import operator
    from reach.wire.unknown import ResolveUnknown, UnknownVerb, Verdict

    command = ResolveUnknown(by=by or operator(), **asked)
    async with open_bus(url) as bus:
        answer = await ask(bus.connection, UnknownVerb.RESOLVE, command)
        (row,) = answer.rows
        if command.verdict is not Verdict.RETRY:
            if as_json:
                output.print_json(answer.model_dump(exclude_none=True))
            else:
                output.line(answer.message)
            return
        if not as_json:
            output.say(answer.message, style="dim")
        await _do_again(bus, row, timeout_s=timeout_s, as_json=as_json)


async def _do_again(bus: Bus, row: UnknownRow, *, timeout_s: float | None, as_json: bool) -> None:
    """Make the call again, or submit the task anew, and print what comes of it."""
    from reach.cli import output
    from reach.cli.call import print_reply

    outcome = row.outcome
    if outcome.kind == "task" and outcome.task_id is not None:
        await bus.task(outcome.task_id, tenant=outcome.tenant).retry()
        if as_json:
            output.print_json({"retried": [outcome.task_id]})
        else:
            output.line(outcome.task_id)
        return
    reply = await send_again(bus, outcome, timeout_s=timeout_s)
    print_reply(outcome.capability, reply, verbose=False, as_json=as_json)


async def send_again(bus: Bus, outcome: UnknownOutcome, *, timeout_s: float | None) -> Reply:
    """Make the call as its caller made it. Whoever does so too gets the same reply: it has the same key."""
    chosen: CallOptions = {"tenant": outcome.tenant}
    if timeout_s is not None:
        chosen["timeout_s"] = timeout_s
    if outcome.session_id is not None:
        chosen["session_id"] = outcome.session_id
    if outcome.task_id is not None:
        chosen["task_id"] = outcome.task_id
    if outcome.target is not None:
        chosen["target"] = outcome.target
    if outcome.require:
        chosen["require"] = outcome.require
    if outcome.idempotency_key is not None:
        chosen["idempotency_key"] = outcome.idempotency_key
    elif outcome.store_key is None:
        chosen["idempotency_key"] = f"unknown-{outcome.reach_id}"
    return await bus.request(outcome.capability, outcome.parameters or {}, **chosen)
