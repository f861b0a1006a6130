"""What a command's exit code means, in one place.

A script decides from the code alone what to do next: repeat, look first, fix something, or give up. So the
codes follow what is *known about execution* and not which part of ours noticed the failure. `Refusal` is how
any part of the command line ends with one of them and a message; `main` prints it and exits.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from reach.faults import Executed

if TYPE_CHECKING:
    from reach.wire.reply import Failure


class Exit(IntEnum):
    """The exit codes of `reach`."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NO_CONNECTION = 3
    SETUP = 4
    UNSURE = 5
    LATER = 6
    INTERRUPTED = 130
    PIPE_CLOSED = 141

    @property
    def meaning(self) -> str:
        """One line for the help text and the documentation."""
        return _MEANINGS[self]


_MEANINGS = {
    Exit.OK: "done",
    Exit.FAILED: "failed: the call, the command, a line of `pipe`, or a check of `doctor`",
    Exit.USAGE: "the command line is wrong: an option, a parameter or a name",
    Exit.NO_CONNECTION: "no way to NATS: none found, none reachable, or it refused us",
    Exit.SETUP: "cannot start: a folder, port, disk, program or agent is not right",
    Exit.UNSURE: "it failed and may have been executed: check before repeating",
    Exit.LATER: "it was not executed and may be repeated: try again later",
    Exit.INTERRUPTED: "ended by Ctrl-C",
    Exit.PIPE_CLOSED: "the reader of the output went away, as in `reach … | head`",
}


class Refusal(Exception):
    """Ends a command with an exit code, a message, and what to do about it."""

    def __init__(self, code: Exit, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.fix = fix


def usage(message: str, *, fix: str = "") -> Refusal:
    """Refuse a command line."""
    return Refusal(Exit.USAGE, message, fix=fix)


def exit_of(failure: Failure) -> Exit:
    """Give the exit code of a failed call, from what is known about execution."""
    if failure.executed is Executed.MAYBE:
        return Exit.UNSURE
    if failure.executed is Executed.NO and failure.retryable:
        return Exit.LATER
    return Exit.FAILED


def table() -> tuple[tuple[int, str], ...]:
    """Every exit code with its meaning, in order."""
    return tuple((int(code), code.meaning) for code in Exit)
