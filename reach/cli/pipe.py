"""`reach pipe`: one call a line, many at once, answers in the order of the lines.

For the pipeline script that would otherwise be written by hand, and would then forget one of these: a bound on
what is under way, the order, a line that is not JSON, an agent that is full for a moment, being killed half-way,
and an exit code. With `--out` a run that was ended can be taken up again (`reach.cli.journal`).
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, cast

import typer

from reach.cli import options as opt
from reach.cli.dial import open_bus, run

if TYPE_CHECKING:
    from reach.cli.conveyor import Brake, Plan, Summary
    from reach.cli.progress import LineProgress

EXAMPLES = (
    (
        "One call for each line; failed ones are lines of the output, too",
        "reach pipe greet < in.jsonl > out.jsonl",
    ),
    (
        "Can be interrupted, killed and run again: it goes on",
        "reach pipe greet --in in.jsonl --out out.jsonl",
    ),
    (
        "64 at a time; the input lines that failed go to a file of their own",
        "reach pipe greet -n 64 --errors failed.jsonl < in.jsonl > out.jsonl",
    ),
    (
        "Long work: each line a task; can be interrupted, and goes on",
        "reach pipe ledger.reconcile --tasks --in in.jsonl --out out.jsonl",
    ),
    ("Only the results", "reach pipe greet < in.jsonl | jq -c 'select(.ok).data'"),
)

_CONCURRENCY = 16
_PATIENCE = "60"


def pipe(
    capability: opt.Capability,
    *,
    source: Annotated[
        Path | None, typer.Option("--in", metavar="FILE", help="Read lines from a file instead of stdin.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Write to a file instead of stdout, and go on where it ends."
        ),
    ] = None,
    errors: Annotated[
        Path | None,
        typer.Option(
            "--errors", metavar="FILE", help="Also write the input lines that failed here, to run again."
        ),
    ] = None,
    concurrency: Annotated[
        int,
        typer.Option("--concurrency", "-n", min=1, max=4096, metavar="N", help="Calls under way at once."),
    ] = _CONCURRENCY,
    stop_on_error: Annotated[
        bool, typer.Option("--stop-on-error", help="Begin no more lines after one that failed.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="With --out: start over instead of going on.")
    ] = False,
    repeat_unsure: Annotated[
        bool,
        typer.Option(
            "--repeat-unsure",
            help="When going on: send lines again that were under way when it was killed, even if the capability "
            "is not idempotent.",
        ),
    ] = False,
    patience: Annotated[
        str,
        typer.Option(
            "--patience", metavar="TIME", help="How long to wait for an agent that is full or reconnecting."
        ),
    ] = _PATIENCE,
    tasks: Annotated[
        bool,
        typer.Option(
            "--tasks", help="Submit each line as a task, and wait for its end, however long that takes."
        ),
    ] = False,
    timeout: opt.Timeout = None,
    target: opt.Target = None,
    require: opt.Require = None,
    prefer: opt.Prefer = None,
    priority: opt.Priority = None,
    url: opt.Url = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Call a capability for each line of JSON lines; the answers keep the order.

    A line of output is {"line": 3, "ok": true, "data": …} or {"line": 4, "ok": false, "error": …}.
    The exit code is 1 when a line failed. With --json the summary on stderr is JSON, too.
    """
    from reach.cli.call import call_options
    from reach.cli.conveyor import Brake, Plan
    from reach.cli.exits import Exit, usage
    from reach.cli.params import duration

    if out is None and (overwrite or repeat_unsure):
        raise usage("--overwrite and --repeat-unsure belong to --out.")
    if tasks and (target is not None or require or prefer):
        raise usage("--target, --require and --prefer are for calls: the queue of tasks picks the worker.")
    plan = Plan(
        tasks=tasks,
        capability=capability,
        concurrency=concurrency,
        patience_s=duration(patience, option="--patience"),
        stop_on_error=stop_on_error,
        repeat_unsure=repeat_unsure,
        options=call_options(
            timeout=timeout, target=target, require=require, prefer=prefer, priority=priority
        ),
    )
    files = Files(source=source, out=out, errors=errors, overwrite=overwrite)
    brake = Brake()
    summary = run(_pipe(plan, files, brake, url=url, quiet=quiet or as_json), fast=True)
    if summary is not None:
        _tell(summary, files, as_json=as_json, quiet=quiet)
    if summary is None or brake.pulled:
        raise typer.Exit(Exit.INTERRUPTED)
    if summary.failed:
        raise typer.Exit(Exit.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What is read and written; None is stdin, stdout, and nowhere."""

    source: Path | None
    out: Path | None
    errors: Path | None
    overwrite: bool

    def open_source(self, stack: AsyncExitStack) -> int:
        """Give the descriptor of the input. Raises `Refusal`."""
        if self.source is None:
            if sys.stdin.isatty():
                typer.echo("Reading JSON lines from the terminal; Ctrl-D ends them.", err=True)
            return sys.stdin.fileno()
        return stack.enter_context(_opened(self.source, "rb", option="--in")).fileno()

    def open_errors(self, stack: AsyncExitStack) -> IO[bytes] | None:
        """Give the file for the input of failed lines. Raises `Refusal`."""
        return (
            None
            if self.errors is None
            else stack.enter_context(_opened(self.errors, "wb", option="--errors"))
        )


def _opened(path: Path, mode: str, *, option: str) -> IO[bytes]:
    from reach.cli.exits import Exit, Refusal

    try:
        return cast("IO[bytes]", path.open(mode))
    except OSError as error:
        raise Refusal(Exit.SETUP, f"{option} {path} cannot be opened: {error.strerror}.") from None


async def _pipe(plan: Plan, files: Files, brake: Brake, *, url: str | None, quiet: bool) -> Summary | None:
    """Run it, until the end or a Ctrl-C; what became of the lines, or None when a second one left some."""
    from reach.cli.conveyor import Sink, convey
    from reach.cli.feed import Feed
    from reach.cli.journal import Journal
    from reach.cli.progress import LineProgress

    async with AsyncExitStack() as stack:
        feed = Feed(files.open_source(stack))
        bus = await stack.enter_async_context(open_bus(url))
        journal = None
        if files.out is not None:
            journal = Journal.open(files.out, capability=plan.capability, overwrite=files.overwrite)
            stack.callback(journal.close)
        sink = Sink(journal, files.open_errors(stack))
        progress = stack.enter_context(LineProgress("pipe", total=feed.bytes_total, quiet=quiet))
        stack.enter_context(_interrupts(brake, progress))
        summary = None
        try:
            summary = await convey(plan, bus, feed, sink, progress, brake)
        except asyncio.CancelledError:
            if not brake.pulled:
                raise
        progress.stop()
        if brake.pulled and files.out is not None:
            typer.echo(
                f"Interrupted after {progress.done} lines. The same command goes on from there.", err=True
            )
        return summary


@contextmanager
def _interrupts(brake: Brake, progress: LineProgress) -> Iterator[None]:
    """Let a first Ctrl-C pull the brake, so that what is under way is not left in doubt; a second one cancels."""
    loop, running = asyncio.get_running_loop(), asyncio.current_task()

    def on_interrupt() -> None:
        if brake.pulled and running is not None:
            running.cancel()
            return
        progress.stop()
        typer.echo("Waiting for the lines that are under way. Once more, and they are left.", err=True)
        brake.pull()

    loop.add_signal_handler(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _tell(summary: Summary, files: Files, *, as_json: bool, quiet: bool) -> None:
    from reach.cli import output

    if as_json:
        typer.echo(output.compact(summary.to_map()), err=True)
    elif not quiet:
        output.say(summary.text())
        if summary.unsure and files.out is not None:
            output.say(
                f"{output.plural(summary.unsure, 'line')} had been sent when an earlier run was killed, and may have "
                "been executed: they are failures of reason OUTCOME_UNKNOWN. --repeat-unsure would have sent them."
            )
