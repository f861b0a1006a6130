"""`reach submit`: give somebody work that takes longer than one would wait for, and get its id.

The id goes to stdout, so that `task=$(reach submit …)` works; what to do with it is said on stderr. With `--wait` it is
followed to its end, and its result is printed as `reach call` prints one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from reach.cli import options as opt
from reach.cli.call import ParamArguments
from reach.cli.dial import open_bus, run

if TYPE_CHECKING:
    from datetime import datetime

    from reach.call.options import CallOptions

EXAMPLES = (
    ("Submit, and print the id", "reach submit ledger.reconcile period=2025-01"),
    ("Follow it to its end, and print its result", "reach submit ledger.reconcile period=2025-01 --wait"),
    ("Not twice, however often this is run", "reach submit ledger.close period=2025-01 --key close-2025-01"),
    ("Tonight", "reach submit ledger.reconcile period=2025-01 --at 2025-02-01T02:00:00+01:00"),
    ("In ten minutes, at most an hour long", "reach submit ledger.reconcile --delay 10m --timeout 1h"),
    ("Have its end posted to you", "reach submit ledger.reconcile --callback https://example.org/hooks"),
)


def submit(
    capability: opt.Capability,
    arguments: ParamArguments = None,
    *,
    params: opt.Params = None,
    key: opt.Key = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout", "-t", metavar="TIME", help="Its whole time: 90s, 10m, 2h. A day where not given."
        ),
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", metavar="TIME", help="Not before so long from now: 30s, 10m, 2h.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="WHEN", help="Not before then: 2025-02-01T02:00:00+01:00, or …Z."),
    ] = None,
    callback: Annotated[
        str | None, typer.Option("--callback", metavar="URL", help="Have its end posted there, signed.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Follow it to its end, and print its result.")
    ] = False,
    session: opt.Session = None,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """Submit a task and print its id.

    It is kept until it is done, whether or not a worker is there now. `reach task watch ID` follows it.
    """
    import sys

    from reach.cli.call import call_options
    from reach.cli.params import duration, parse

    given = parse(arguments or (), params=params, read_stdin=sys.stdin.buffer.read)
    chosen = call_options(timeout=timeout, key=key, session=session)
    when = None if at is None else moment(at)
    delay_s = None if delay is None else duration(delay, option="--delay")
    extra: dict[str, Any] = {"callback": callback, "delay_s": delay_s, "at": when}
    run(_submit(capability, given, chosen, extra, wait=wait, url=url, as_json=as_json))


def moment(text: str) -> datetime:
    """Read a point in time. Raises `Refusal`."""
    from datetime import datetime

    from reach.cli.exits import usage

    right = "Right would be: 2025-02-01T02:00:00+01:00, or 2025-02-01T01:00:00Z"
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise usage(f"--at {text!r} is no point in time.", fix=right) from None
    if found.tzinfo is None:
        raise usage(f"--at {text!r} has no time zone, and would mean another time elsewhere.", fix=right)
    return found


async def _submit(
    capability: str,
    given: dict[str, Any],
    chosen: CallOptions,
    extra: dict[str, Any],
    *,
    wait: bool,
    url: str | None,
    as_json: bool,
) -> None:
    from reach.cli import output
    from reach.cli.exits import usage
    from reach.cli.taskwatch import follow

    async with open_bus(url) as bus:
        try:
            task = await bus.submit(capability, given, **extra, **chosen)
        except (ValueError, TypeError) as error:
            raise usage(str(error)) from None
        if wait:
            if not as_json:
                output.say(f"task {task.id}", style="dim")
            await follow(task, as_json=as_json)
            return
    told = {
        "task_id": task.id,
        "tenant": task.tenant,
        "capability": capability,
        "duplicate": task.is_duplicate,
    }
    if as_json:
        output.print_json(told)
        return
    output.line(task.id)
    again = "It was submitted under this key before. " if task.is_duplicate else ""
    output.say(f"{again}reach task watch {task.id}", style="dim")
