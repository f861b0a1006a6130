"""`reach task …`: look at tasks, follow one, cancel, answer, submit anew.

One task is read from its own events, so `watch`, `cancel`, `answer` and `retry` need no platform. Lists, and what
became of callbacks, are the platform's to tell.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reach.cli import options as opt
from reach.cli.dial import open_bus, run

if TYPE_CHECKING:
    from reach.call.client import Bus
    from reach.cli.look import View

TaskId = Annotated[str, typer.Argument(metavar="TASK", help="The task's id.", show_default=False)]
Tenant = Annotated[
    str | None, typer.Option("--tenant", metavar="TENANT", help="Whose task it is, where it is a tenant's.")
]
_Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=500, metavar="N", help="At most so many.")]
_States = Annotated[
    list[str] | None,
    typer.Option("--state", "-s", metavar="STATE", help="Only in this state; repeatable."),
]
_Of = Annotated[
    str | None,
    typer.Argument(
        metavar="CAPABILITY", help="Only of this one, or of all below: ledger.*", show_default=False
    ),
]

LS_EXAMPLES = (
    ("The newest", "reach task ls"),
    ("What waits for a person", "reach task ls --state input_required"),
    ("Of these, again each second", "reach task ls 'ledger.*' --watch"),
    ("By a part of id, capability, submitter or error", "reach task ls --text timeout"),
)
SHOW_EXAMPLES = (("All that happened to it", "reach task show 7aytd4gy5osnh5z7"),)
WATCH_EXAMPLES = (("Follow it to its end, and print its result", "reach task watch 7aytd4gy5osnh5z7"),)
CANCEL_EXAMPLES = (("End it, wherever it is", "reach task cancel 7aytd4gy5osnh5z7"),)
ANSWER_EXAMPLES = (
    ("What it asks is a yes or no", "reach task answer 7aytd4gy5osnh5z7 true"),
    ("Or JSON; what is none is text", """reach task answer 7aytd4gy5osnh5z7 '{"release": [17, 18]}'"""),
)
RETRY_EXAMPLES = (("Once more, with the same parameters", "reach task retry 7aytd4gy5osnh5z7"),)
DEAD_EXAMPLES = (
    ("What was given up", "reach task dead"),
    ("Try all of these once more", "reach task dead 'ledger.*' --retry"),
)
HOOKS_EXAMPLES = (("What is still owed", "reach task hooks --standing pending"),)
REPLAY_EXAMPLES = (("Post its end again", "reach task replay 7aytd4gy5osnh5z7"),)
SECRET_EXAMPLES = (("What a receiver verifies with", "reach task secret"),)


def ls(
    capability: _Of = None,
    *,
    state: _States = None,
    text: Annotated[str | None, typer.Option("--text", metavar="TEXT", help="Only with this in it.")] = None,
    tenant: Tenant = None,
    limit: _Limit = 50,
    watch: opt.Watch = False,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """List tasks, the newest first."""
    from reach.cli.look import look

    async def take(bus: Bus) -> View:
        return await _listed(bus, capability=capability, states=state, text=text, tenant=tenant, limit=limit)

    run(look(take, url=url, watch=watch, as_json=as_json))


def show(task_id: TaskId, *, tenant: Tenant = None, url: opt.Url = None, as_json: opt.AsJson = False) -> None:
    """Show all that happened to a task."""
    run(_show(task_id, tenant, url=url, as_json=as_json))


def watch(
    task_id: TaskId, *, tenant: Tenant = None, url: opt.Url = None, as_json: opt.AsJson = False
) -> None:
    """Follow a task to its end, and print its result.

    The exit code is that of a call: 0 completed, 1 failed, 5 it may have been executed, 6 it was not. Ctrl-C leaves
    the task as it is.
    """
    run(_watch(task_id, tenant, url=url, as_json=as_json))


def cancel(
    task_id: TaskId,
    *,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="N", help="Only if it is at this attempt.")
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; it is kept.")] = None,
    tenant: Tenant = None,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """End a task, and print the state that it is in then.

    That is `cancelled`, or the end that came first; the exit code is 0 where it has ended.
    """
    run(_cancel(task_id, tenant, attempt=attempt, reason=reason, url=url, as_json=as_json))


def answer(
    task_id: TaskId,
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="JSON; what is none is text.", show_default=False)
    ],
    *,
    tenant: Tenant = None,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """Answer what a task asks.

    An answer that does not fit the question is refused, and the question stays.
    """
    run(_answer(task_id, tenant, value, url=url, as_json=as_json))


def retry(
    task_id: TaskId,
    *,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", "-t", metavar="TIME", help="Its new time; as before where not given."),
    ] = None,
    tenant: Tenant = None,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """Submit a task anew that failed, died or ran out of time, under the same id."""
    from reach.cli.params import duration

    timeout_s = None if timeout is None else duration(timeout, option="--timeout")
    run(_retry([task_id], tenant, timeout_s=timeout_s, url=url, as_json=as_json))


def dead(
    capability: _Of = None,
    *,
    again: Annotated[bool, typer.Option("--retry", help="Submit all that are listed anew.")] = False,
    tenant: Tenant = None,
    limit: _Limit = 50,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """List what was given up after all its attempts, or try it once more."""
    from reach.cli.look import look

    async def take(bus: Bus) -> View:
        return await _listed(bus, capability=capability, states=["dead"], tenant=tenant, limit=limit)

    if again:
        run(_retry_dead(capability, tenant, limit=limit, url=url, as_json=as_json))
    else:
        run(look(take, url=url, watch=False, as_json=as_json))


def hooks(
    *,
    standing: Annotated[
        str | None,
        typer.Option(
            "--standing", metavar="WORD", help="pending, delivered, exhausted, refused or disabled."
        ),
    ] = None,
    limit: _Limit = 50,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """List callbacks, and what became of them."""
    from reach.cli.look import View, look

    async def take(bus: Bus) -> View:
        from reach.cli.taskdesk import ask, hooks_table

        told = await ask(bus, "hooks", standing=standing, limit=limit)
        return View(told, hooks_table(told["hooks"]))

    run(look(take, url=url, watch=False, as_json=as_json))


def replay(
    name: Annotated[
        str, typer.Argument(metavar="TASK", help="The task, or one callback's id.", show_default=False)
    ],
    *,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """Post a task's end again, to an address that was turned off too."""
    run(_replay(name, url=url, as_json=as_json))


def secret(*, tenant: Tenant = None, url: opt.Url = None, as_json: opt.AsJson = False) -> None:
    """Print the secret that callbacks are signed with, for their receiver."""
    run(_secret(tenant, url=url, as_json=as_json))


COMMANDS = (
    ("ls", ls, LS_EXAMPLES),
    ("show", show, SHOW_EXAMPLES),
    ("watch", watch, WATCH_EXAMPLES),
    ("cancel", cancel, CANCEL_EXAMPLES),
    ("answer", answer, ANSWER_EXAMPLES),
    ("retry", retry, RETRY_EXAMPLES),
    ("dead", dead, DEAD_EXAMPLES),
    ("hooks", hooks, HOOKS_EXAMPLES),
    ("replay", replay, REPLAY_EXAMPLES),
    ("secret", secret, SECRET_EXAMPLES),
)
"""The commands of the group, with what their help shows."""

# -- what they do -----------------------------------------------------------------------------------------


async def _listed(bus: Bus, *, states: list[str] | None = None, **asked: Any) -> View:
    from reach.cli.look import View
    from reach.cli.taskdesk import ask, table

    told = await ask(bus, "list", states=states or None, **asked)
    return View(told, table(told["tasks"]))


async def _show(task_id: str, tenant: str | None, *, url: str | None, as_json: bool) -> None:
    from datetime import UTC, datetime

    from rich.text import Text

    from reach.cli import output
    from reach.cli.taskwatch import in_words, told

    async with open_bus(url) as bus:
        task = bus.task(task_id, tenant=tenant)
        entries = await task.history()
    if as_json:
        output.print_json({"task_id": task_id, "events": [told(event) for event in entries]})
        return
    rows = [
        (
            Text(
                datetime.fromtimestamp(event.at / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")[:23]
            ),
            Text(event.state.value, style="bold"),
            Text(in_words(event)),
        )
        for event in entries
    ]
    output.show(output.grid(("utc", "state", "says"), rows))


async def _watch(task_id: str, tenant: str | None, *, url: str | None, as_json: bool) -> None:
    from reach.cli.taskwatch import follow

    async with open_bus(url) as bus:
        task = bus.task(task_id, tenant=tenant)
        await task.last()  # Raises for one that there is not, instead of waiting for it.
        await follow(task, as_json=as_json)


async def _cancel(
    task_id: str,
    tenant: str | None,
    *,
    attempt: int | None,
    reason: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    from reach.cli import output
    from reach.cli.exits import Exit

    async with open_bus(url) as bus:
        state = await bus.task(task_id, tenant=tenant).cancel(attempt=attempt, reason=reason)
    if as_json:
        output.print_json({"task_id": task_id, "state": state.value})
    else:
        output.line(state.value)
    if not state.is_terminal:
        raise typer.Exit(Exit.FAILED)


async def _answer(task_id: str, tenant: str | None, value: str, *, url: str | None, as_json: bool) -> None:
    from reach.cli import output

    async with open_bus(url) as bus:
        await bus.task(task_id, tenant=tenant).answer(_value(value))
    if as_json:
        output.print_json({"task_id": task_id, "answered": True})


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


async def _retry(
    ids: list[str], tenant: str | None, *, timeout_s: float | None, url: str | None, as_json: bool
) -> None:
    async with open_bus(url) as bus:
        for task_id in ids:
            await bus.task(task_id, tenant=tenant).retry(timeout_s=timeout_s)
    _print_ids("retried", ids, as_json=as_json)


async def _retry_dead(
    capability: str | None, tenant: str | None, *, limit: int, url: str | None, as_json: bool
) -> None:
    from reach.cli import output
    from reach.cli.exits import Exit
    from reach.cli.taskdesk import ask
    from reach.errors import ReachError

    failed, done = 0, list[str]()
    async with open_bus(url) as bus:
        told = await ask(bus, "list", states=["dead"], capability=capability, tenant=tenant, limit=limit)
        for row in told["tasks"]:
            try:
                await bus.task(row["task_id"], tenant=row["tenant"]).retry()
            except ReachError as error:
                failed += 1
                output.say(f"{row['task_id']}: {error.message}", style="yellow")
            else:
                done.append(row["task_id"])
    _print_ids("retried", done, as_json=as_json)
    if failed:
        raise typer.Exit(Exit.FAILED)


async def _replay(name: str, *, url: str | None, as_json: bool) -> None:
    from reach.cli.taskdesk import ask

    async with open_bus(url) as bus:
        told = await ask(bus, "replay", id=name)
    _print_ids("replayed", told["replayed"], as_json=as_json)


def _print_ids(what: str, ids: list[str], *, as_json: bool) -> None:
    from reach.cli import output

    if as_json:
        output.print_json({what: ids})
        return
    for one in ids:
        output.line(one)


async def _secret(tenant: str | None, *, url: str | None, as_json: bool) -> None:
    from reach.cli import output
    from reach.cli.taskdesk import ask

    async with open_bus(url) as bus:
        told = await ask(bus, "secret", tenant=tenant)
    if as_json:
        output.print_json(told)
    else:
        output.line(told["secret"])
