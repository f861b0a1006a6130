"""Following one task: a bar on a terminal, a line for each event in a log, JSON lines for programs.

It begins with the task's first event, however late it is looked at, and ends with its end: the result on stdout and
the failure on stderr, with the exit code that a call would have had.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from reach.cli import output
from reach.cli.exits import exit_of
from reach.faults import Reason
from reach.wire.reply import Failure
from reach.wire.task import TaskEvent, TaskState

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from rich.progress import Progress, TaskID

    from reach.call.task import Task

_NO_RESULT = {
    TaskState.CANCELLED: Reason.CANCELLED,
    TaskState.TIMED_OUT: Reason.DEADLINE,
    TaskState.DEAD: Reason.WORKER_LOST,
}


async def follow(task: Task, *, as_json: bool) -> None:
    """Follow a task to its end, and print it. Raises `typer.Exit` for one that did not complete, `ReachError`."""
    end: TaskEvent | None = None
    if as_json:
        async for event in task.events():
            output.line(output.compact(told(event)))
            end = event
    else:
        with TaskProgress(task.id) as progress:
            async for event in task.events():
                progress.show(event)
                end = event
    finish(end, as_json=as_json)


def finish(end: TaskEvent | None, *, as_json: bool) -> None:
    """Print how a task ended. Raises `typer.Exit` where it did not complete."""
    if end is None or end.state is TaskState.COMPLETED:
        if end is not None and not as_json:
            output.print_result(end.data)
        return
    failure = end.error or Failure.of(_NO_RESULT.get(end.state, Reason.UNMAPPED))
    if not as_json:
        hints = [f"reach task show {end.task_id}"]
        if failure.reason is Reason.OUTCOME_UNKNOWN:
            hints.append(f"reach outcomes show {end.task_id}")
        output.print_failure(failure, reach_id=None, hints=hints)
    raise typer.Exit(exit_of(failure))


def told(event: TaskEvent) -> dict[str, Any]:
    """Give an event for programs."""
    body = event.to_map()
    body.pop("notify", None)
    return body


def in_words(event: TaskEvent) -> str:
    """Say what an event tells, in a few words."""
    data: dict[str, Any] = event.data if isinstance(event.data, dict) else {}
    match event.state:
        case TaskState.RUNNING:
            return f"attempt {event.attempt} at {event.instance or 'a worker'}"
        case TaskState.PROGRESS:
            share = data.get("fraction")
            done = f"{share:.0%}" if isinstance(share, int | float) else ""
            return " ".join(filter(None, (done, str(data.get("message") or ""))))
        case TaskState.INPUT_REQUIRED:
            return f"{data.get('question', '')}  → reach task answer {event.task_id} …"
        case TaskState.INPUT_RECEIVED:
            return output.compact(data.get("answer"))
        case _:
            return "" if event.error is None else f"{event.error.reason}: {event.error.message}"


class TaskProgress:
    """Shows the events of a task on stderr."""

    def __init__(self, task_id: str) -> None:
        self._task_id = task_id
        self._bar: tuple[Progress, TaskID] | None = None
        self._state = ""

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._bar = _bar(self._task_id)
            self._bar[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar[0].stop()

    def show(self, event: TaskEvent) -> None:
        """Show one event: in the bar where it is progress, as a line of its own where it is more than that."""
        words = in_words(event)
        if self._bar is None:
            output.say(f"{event.state:<15} {words}".rstrip())
            return
        bar, row = self._bar
        data: dict[str, Any] = event.data if isinstance(event.data, dict) else {}
        share = data.get("fraction") if event.state is TaskState.PROGRESS else None
        if isinstance(share, int | float):
            bar.update(row, completed=share * 100, total=100)
        if event.state is TaskState.INPUT_REQUIRED:
            from rich.text import Text

            bar.console.print(Text(f"? {words}", style="bold"))
        bar.update(row, state=event.state.value, text=str(data.get("message") or words)[:80])


def _bar(what: str) -> tuple[Progress, TaskID]:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    bar = Progress(
        SpinnerColumn(),
        TextColumn(what),
        TextColumn("{task.fields[state]}", style="bold"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}", markup=False),
        console=output.console(sys.stderr),
        transient=True,
    )
    return bar, bar.add_task(what, total=None, state="", text="")
