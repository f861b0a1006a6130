"""Looking: one view of what is there, once or each second, for people or for programs.

What is shown comes from whoever knows: the supervisor where there is one, else the agents themselves. A `note` says
which, where that matters; it goes to stderr, so that it stands in nobody's pipe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reach.cli.dial import open_bus

if TYPE_CHECKING:
    from rich.console import RenderableType

    from reach.call.client import Bus

_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class View:
    """One look: for programs, for people, and what has to be said about it."""

    data: Any
    shown: RenderableType
    note: str = ""


async def look(
    take: Callable[[Bus], Awaitable[View]], *, url: str | None, watch: bool, as_json: bool
) -> None:
    """Take a view and show it; with `watch` each second, until Ctrl-C."""
    from reach.cli import output

    async with open_bus(url) as bus:
        if watch:
            await _follow(take, bus, as_json=as_json)
            return
        view = await take(bus)
    if as_json:
        output.print_json(view.data)
    else:
        output.show(view.shown)
    if view.note:
        output.say(view.note, style="yellow")


async def _follow(take: Callable[[Bus], Awaitable[View]], bus: Bus, *, as_json: bool) -> None:
    """Show it again and again: in place on a terminal, one JSON document a line for programs."""
    import sys

    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from reach.cli import output

    if as_json or not sys.stdout.isatty():
        noted = ""
        while True:
            view = await take(bus)
            if as_json:
                output.line(output.compact(view.data))
            else:
                output.show(view.shown)
                output.line("")
            if view.note and view.note != noted:
                output.say(view.note, style="yellow")
            noted = view.note
            await asyncio.sleep(_EVERY_S)
    with Live(console=output.console(sys.stdout), auto_refresh=False) as live:
        while True:
            view = await take(bus)
            shown = Group(view.shown, Text(view.note, style="yellow")) if view.note else view.shown
            live.update(shown, refresh=True)
            await asyncio.sleep(_EVERY_S)
