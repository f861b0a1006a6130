"""How far a long command is, on stderr: a bar on a terminal, a line every few seconds in a log, or nothing."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from reach.cli import output

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_LOG_EVERY_S = 5.0


class LineProgress:
    """Counts lines done and failed; knows the share done where the size of the input is known."""

    def __init__(self, what: str, *, total: int | None, quiet: bool = False) -> None:
        self._what = what
        self._total = total
        self._quiet = quiet
        self._bar: tuple[Progress, TaskID] | None = None
        self._began = self._told = time.monotonic()
        self._began_with: int | None = None
        self.done = 0
        self.failed = 0

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            self._bar = _bar(self._what, self._total)
            self._bar[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the bar away, before something else is said. May be called twice."""
        if self._bar is not None:
            self._bar[0].stop()

    def count(self, *, ok: bool, position: int) -> None:
        """Note that one more line is done; `position` is how much of `total` is done."""
        self.done += 1
        self.failed += not ok
        if self._bar is not None:
            bar, task = self._bar
            bar.update(task, completed=position, text=self._text())
        elif not self._quiet and (now := time.monotonic()) - self._told >= _LOG_EVERY_S:
            self._told = now
            output.say(f"{self._what}: {self._text()}")

    def resume(self, *, done: int, failed: int) -> None:
        """Begin with what earlier runs did."""
        self.done, self.failed = done, failed
        self._began_with = done

    def _text(self) -> str:
        elapsed_s = max(time.monotonic() - self._began, 0.001)
        rate = (self.done - (self._began_with or 0)) / elapsed_s
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{output.plural(self.done, 'line')}{failed}, {rate:.0f}/s"


def _bar(what: str, total: int | None) -> tuple[Progress, TaskID]:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    columns = [SpinnerColumn(), TextColumn(what), BarColumn(), TextColumn("{task.fields[text]}")]
    if total is not None:
        columns.append(TimeRemainingColumn())
    bar = Progress(*columns, console=output.console(sys.stderr), transient=True)
    return bar, bar.add_task(what, total=total, text="")
