"""The `reach` command: what there is, in which group, with which examples.

Commands are plain functions in files of their own; here they get their place in the help and their edge
(`reach.cli.dial.guarded`). Nothing that a command needs is imported before it runs, so that `reach --help`
and completion answer at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from reach.cli import (
    bench,
    call,
    caps,
    doctor,
    drain,
    exits,
    outcomes,
    pipe,
    ps,
    route,
    route_look,
    run,
    schema,
    submit,
    task,
    up,
)
from reach.cli.dial import guarded

SERVE = "Serve"
CALL = "Call"
LOOK = "Look"
STEER = "Steer"
CHECK = "Check and measure"

_WELCOME = """Agent-Reach: call what agents can do, over NATS.

Start with [bold]reach up[/bold] in one terminal; then [bold]reach run module:agent[/bold] and
[bold]reach call CAPABILITY key=value[/bold] in others.
"""


class _Command(TyperCommand):
    """A command whose help names no types of Python: `<bool>` beside a flag reads as if it took a value."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class _Group(TyperGroup):
    """The same, for `reach` itself and its groups."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


def _without_types(params: list[Any]) -> list[Any]:
    for param in params:
        if isinstance(param, TyperArgument):
            vars(param)["display_type_rich"] = _no_type
        elif isinstance(param, TyperOption) and param.is_flag:
            param.metavar = ""
    return params


def _no_type(*_: object, **__: object) -> None:
    """What typer shows in the column of types: nothing."""


def prose(text: str | None) -> str:
    """Give a docstring with one line a paragraph: where lines break is for the terminal to say."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text or "").split("\n\n"))


def examples(pairs: Sequence[tuple[str, str]]) -> str:
    """Give the examples at the foot of a command's help."""
    lines = [
        f"  [dim]# {_escaped(about)}[/dim]\n  [cyan]{_escaped(command)}[/cyan]" for about, command in pairs
    ]
    return "[bold]Examples[/bold]\n\n" + "\n\n".join(lines)


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")


def _epilog() -> str:
    codes = "\n".join(f"  [bold]{code:>3}[/bold]  {_escaped(meaning)}" for code, meaning in exits.table())
    return f"[bold]Exit codes[/bold] (the same for every command)\n\n{codes}"


app = typer.Typer(
    name="reach",
    cls=_Group,
    help=prose(_WELCOME),
    epilog=_epilog(),
    no_args_is_help=True,
    rich_markup_mode="rich",
    # A traceback in a frame is still a traceback: what people meet is explained by `guarded`.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"reach {metadata.version('agent-reach')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


def _add(panel: str, name: str, command: Callable[..., Any], shown: Sequence[tuple[str, str]]) -> None:
    app.command(
        name,
        cls=_Command,
        help=prose(command.__doc__),
        rich_help_panel=panel,
        epilog=examples(shown),
        no_args_is_help=name in _NEEDS_ARGUMENTS,
    )(guarded(command))


_NEEDS_ARGUMENTS = frozenset({"run", "call", "stream", "submit", "pipe", "drain"})

_add(SERVE, "up", up.up, up.EXAMPLES)
_add(SERVE, "run", run.run, run.EXAMPLES)
_add(CALL, "call", call.call, call.CALL_EXAMPLES)
_add(CALL, "stream", call.stream, call.STREAM_EXAMPLES)
_add(CALL, "submit", submit.submit, submit.EXAMPLES)
_add(CALL, "pipe", pipe.pipe, pipe.EXAMPLES)
_add(LOOK, "ps", ps.ps, ps.EXAMPLES)
_add(LOOK, "caps", caps.caps, caps.EXAMPLES)
_add(STEER, "drain", drain.drain, drain.EXAMPLES)
_add(CHECK, "doctor", doctor.doctor, doctor.EXAMPLES)
_add(CHECK, "bench", bench.bench, bench.EXAMPLES)


def _add_group(
    panel: str,
    name: str,
    about: str,
    commands: Sequence[tuple[str, Callable[..., Any], Sequence[tuple[str, str]]]],
) -> None:
    group = typer.Typer(name=name, cls=_Group, help=about, no_args_is_help=True, rich_markup_mode="rich")
    for own_name, command, shown in commands:
        group.command(own_name, cls=_Command, help=prose(command.__doc__), epilog=examples(shown))(
            guarded(command)
        )
    app.add_typer(group, rich_help_panel=panel)


_add_group(
    CALL, "task", "Tasks: list, follow, cancel, answer, submit anew; and their callbacks.", task.COMMANDS
)
_add_group(
    LOOK,
    "schema",
    "The published contract: JSON Schema and AsyncAPI of every message.",
    (
        ("export", schema.export, schema.EXPORT_EXAMPLES),
        ("show", schema.show, schema.SHOW_EXAMPLES),
    ),
)
_add_group(
    STEER,
    "outcomes",
    "Calls of which nobody knows whether they were done: list, look into, resolve.",
    outcomes.COMMANDS,
)
_add_group(
    STEER,
    "route",
    "Where calls go: look, explain, and change it for all callers at once.",
    (
        ("show", route_look.show, route_look.SHOW_EXAMPLES),
        ("explain", route_look.explain, route_look.EXPLAIN_EXAMPLES),
        ("set", route.set_, route.SET_EXAMPLES),
        ("canary", route.canary, route.CANARY_EXAMPLES),
        ("open", route.open_, route.OPEN_EXAMPLES),
        ("close", route.close, route.CLOSE_EXAMPLES),
        ("disable", route.disable, route.DISABLE_EXAMPLES),
        ("resync", route.resync, route.RESYNC_EXAMPLES),
    ),
)


def main() -> None:
    """Run the command line; the entry point `reach`."""
    app(prog_name="reach")


if __name__ == "__main__":
    main()
