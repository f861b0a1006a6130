"""What the demonstration prints: for people a bar, tables and sentences; for programs one JSON document."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from examples.demo.reading import Loss, Progress, Reading
from examples.demo.verdict import Check, ended_by_the_loss

_STEPS = 5
"""Lines of progress where there is no terminal."""

_ROWS = 8
"""Rows of the calls that the loss ended."""


class Teller:
    """Tells how it goes. `console` gets it all; nothing goes to it but what a person would read."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Bar | None = None
        self._task: Any = None
        self._steps_told = 0
        self._loss_told = False

    def say(self, text: str = "", *, style: str = "") -> None:
        """Print a line."""
        self._console.print(text, style=style or None, markup=False, soft_wrap=True)

    def start(self, total: int) -> None:
        """Begin with the progress."""
        if not self._console.is_terminal:
            return
        columns = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Bar(*columns, console=self._console)
        self._task = self._bar.add_task("reading", total=total)
        self._bar.start()

    def stop(self) -> None:
        """End it."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def on_change(self, progress: Progress) -> None:
        """Show how far it is."""
        if progress.lost is not None and not self._loss_told:
            self._loss_told = True
            loss = progress.lost
            self.say(
                f"  ✂ kill -9 {loss.pid}: {short(loss.instance)}, holding {loss.held} calls", style="bold red"
            )
        if self._bar is not None:
            self._bar.update(self._task, completed=progress.done)
        elif progress.done * _STEPS // progress.total > self._steps_told:
            self._steps_told = progress.done * _STEPS // progress.total
            self.say(f"  {progress.done} of {progress.total} read")

    def tables(self, readings: Sequence[Reading], loss: Loss | None, *, every: bool) -> None:
        """Print the documents (each file once unless `every`), what the lost instance held, and the failures."""
        shown = readings if every else _each_once(readings)
        title = (
            "What was read"
            if every or len(shown) == len(readings)
            else "What was read, one call of each file"
        )
        self._console.print()
        self._console.print(_table(title, shown))
        if loss is not None and (ended := ended_by_the_loss(readings, loss)):
            self._console.print()
            self._console.print(_loss_table(ended if every else ended[:_ROWS], loss))
            if not every and len(ended) > _ROWS:
                self.say(f"… and {len(ended) - _ROWS} more")
        for reading in _each_once([reading for reading in readings if not reading.reply.ok]):
            self._failure(reading)

    def _failure(self, reading: Reading) -> None:
        error = reading.reply.error
        if error is None:
            return
        self.say()
        self.say(f"{reading.document.name} could not be read, and the reply says why:", style="bold")
        facts = {
            "code": error.code,
            "reason": error.reason,
            "message": error.message,
            "executed": error.executed,
            "advice": error.advice,
            "reach_id": reading.reply.reach_id,
        }
        for name, value in facts.items():
            self.say(f"  {name:<9} {value}")

    def checks(self, checks: Sequence[Check]) -> None:
        """Print what held and what did not."""
        self.say()
        for check in checks:
            detail = f" ({check.detail})" if check.detail else ""
            self.say(
                f"{'✔' if check.ok else '✘'} {check.claim}{detail}", style="green" if check.ok else "bold red"
            )


def short(instance: str | None) -> str:
    """Give the part of an instance's name that tells it from its siblings."""
    return "" if instance is None else instance.rpartition("-")[2]


def _each_once(readings: Sequence[Reading]) -> list[Reading]:
    """Give one call of each file: of several the one that took the most attempts, then the last."""
    chosen: dict[str, Reading] = {}
    for reading in readings:
        before = chosen.get(reading.document.name)
        if before is None or reading.reply.attempt >= before.reply.attempt:
            chosen[reading.document.name] = reading
    return list(chosen.values())


def _table(title: str, readings: Sequence[Reading]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in ("file", "supplier"):
        table.add_column(column, overflow="ellipsis", no_wrap=True)
    table.add_column("total", justify="right", no_wrap=True)
    table.add_column("instance", no_wrap=True)
    table.add_column("attempt", justify="right")
    table.add_column("latency", justify="right", no_wrap=True)
    for reading in readings:
        reply = reading.reply
        failed = "" if reply.error is None else f"{reply.error.code}/{reply.error.reason}"
        table.add_row(
            reading.document.name,
            failed or reading.supplier,
            "" if failed else f"{reading.total} {reading.currency}",
            short(reply.instance),
            str(reply.attempt),
            f"{reply.latency_ms:.0f} ms",
            style="red" if failed else "yellow" if reply.attempt > 1 else None,
        )
    return table


def _loss_table(ended: Sequence[Reading], loss: Loss) -> Table:
    title = f"Calls that ended with {short(loss.instance)}, and who answered instead"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("file", no_wrap=True, overflow="ellipsis")
    table.add_column("first attempt", no_wrap=True)
    table.add_column("answered by", no_wrap=True)
    table.add_column("attempt", justify="right")
    table.add_column("latency", justify="right", no_wrap=True)
    for reading in ended:
        first = reading.first
        how = "" if first is None else f"{short(first.instance) or 'unaccepted'}: {first.reason}"
        reply = reading.reply
        latency = f"{reply.latency_ms:.0f} ms"
        table.add_row(reading.document.name, how, short(reply.instance), str(reply.attempt), latency)
    return table


def to_json(
    readings: Sequence[Reading],
    loss: Loss | None,
    checks: Sequence[Check],
    *,
    seconds: float,
    left_running: Sequence[int],
) -> dict[str, Any]:
    """Give everything for programs."""
    ended = [] if loss is None else ended_by_the_loss(readings, loss)
    return {
        "ok": all(check.ok for check in checks),
        "seconds": round(seconds, 3),
        "documents": [_document(reading) for reading in readings],
        "lost": None
        if loss is None
        else {"instance": loss.instance, "pid": loss.pid, "held": loss.held, "sent_again": len(ended)},
        "left_running": list(left_running),
        "checks": [{"claim": check.claim, "ok": check.ok, "detail": check.detail} for check in checks],
    }


def _document(reading: Reading) -> dict[str, Any]:
    reply = reading.reply
    error = reply.error
    return {
        "file": reading.document.name,
        "ok": reply.ok,
        "number": reading.number,
        "supplier": reading.supplier,
        "total": reading.total,
        "currency": reading.currency,
        "instance": reply.instance,
        "attempt": reply.attempt,
        "latency_ms": round(reply.latency_ms, 1),
        "cached": reply.cached,
        "first_attempt": None
        if reading.first is None
        else {"instance": reading.first.instance, "reason": reading.first.reason},
        "error": None
        if error is None
        else {
            "code": error.code,
            "reason": error.reason,
            "message": error.message,
            "executed": error.executed,
            "advice": error.advice,
        },
    }
