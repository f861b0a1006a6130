"""How commands come to a bus: one way to connect, one way to run, one face for what goes wrong.

Commands log in as *operator*. Whatever prevents that (no server, a bad address, a refused key) ends with exit
code 3 and points at `reach doctor`. `guarded` is the edge of every command: it turns our exceptions into exit
codes, and a Ctrl-C or a closed pipe into a quiet end.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import typer

from reach.cli.exits import Exit, Refusal, exit_of
from reach.errors import ConfigError, LinkDown, NameRefused, NotOnTheWire, ReachError, Unreachable

if TYPE_CHECKING:
    from reach.call.client import Bus

P = ParamSpec("P")
T = TypeVar("T")

_DOCTOR = "`reach doctor` checks the way step by step."


@asynccontextmanager
async def open_bus(url: str | None) -> AsyncIterator[Bus]:
    """Connect as operator. Raises `Refusal` (3) when there is no way to NATS."""
    from reach.bus.keys import Role
    from reach.call.client import connect

    try:
        connecting = connect(url, role=Role.OPERATOR)
        bus = await connecting.__aenter__()
    except (ConfigError, Unreachable) as error:
        text = error.message if isinstance(error, ReachError) else str(error)
        raise Refusal(Exit.NO_CONNECTION, text, fix=_pointer(text)) from None
    try:
        yield bus
    finally:
        # The block's own exception matters more than how the connection ends: it is not handed on.
        await connecting.__aexit__(None, None, None)


def run(coroutine: Coroutine[Any, Any, T], *, fast: bool = False) -> T:
    """Run a command's asynchronous part; `fast` takes uvloop where there is one (for many calls, not for one)."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if fast:
        try:
            import uvloop
        except ImportError:
            factory = None
        else:
            factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(coroutine)


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """Put a command behind the one edge where exceptions become exit codes."""

    @functools.wraps(command)
    def edge(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except BrokenPipeError:
            # The reader left. What is still buffered cannot be written: let it go where nobody complains.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(Exit.PIPE_CLOSED) from None
        except KeyboardInterrupt:
            raise typer.Exit(Exit.INTERRUPTED) from None
        except Exception as error:
            refusal = as_refusal(_innermost(error))
            if refusal is None:
                raise
            _refuse(refusal, as_json=bool(kwargs.get("as_json")))

    return edge


def as_refusal(error: BaseException) -> Refusal | None:
    """Give the ending that an exception of ours stands for; None for one that is nobody's plan."""
    match error:
        case Refusal():
            return error
        case NameRefused() | NotOnTheWire():
            return Refusal(Exit.USAGE, str(error))
        case ConfigError():
            return Refusal(Exit.SETUP, str(error))
        case Unreachable():
            return Refusal(Exit.NO_CONNECTION, error.message, fix=_pointer(error.message))
        case LinkDown():
            return Refusal(Exit.NO_CONNECTION, "The connection to NATS was lost.", fix=_DOCTOR)
        case ReachError():
            from reach.wire.reply import Failure

            return Refusal(exit_of(Failure.of_error(error)), str(error))
        case _:
            return _of_model(error)


def _of_model(error: BaseException) -> Refusal | None:
    """Name the fields of a message of ours that what was typed does not fit into; None for any other exception."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return None
    wrong = "; ".join(
        f"{'.'.join(map(str, one['loc']))}: {one['msg'].removeprefix('Value error, ')}"
        for one in error.errors(include_url=False, include_input=False)
    )
    return Refusal(Exit.USAGE, wrong)


def _innermost(error: BaseException) -> BaseException:
    """One failed task of a group stands for the group: the others were cancelled because of it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _pointer(text: str) -> str:
    return "" if "reach doctor" in text else _DOCTOR


def _refuse(refusal: Refusal, *, as_json: bool) -> None:
    from reach.cli import output

    if as_json:
        output.print_refusal_json(refusal)
    else:
        output.print_refusal(refusal)
    raise typer.Exit(refusal.code)
