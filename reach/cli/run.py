"""`reach run`: serve agents from a module until Ctrl-C or SIGTERM, then leave without losing a call.

With `--watch` the serving process is a child that is replaced when a file changes: what imports cannot undo in
one process a new process does by itself, and the old one drains as on any stop.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reach.cli import options as opt
from reach.cli.exits import Exit, Refusal, usage

if TYPE_CHECKING:
    from reach.bus.settings import Settings
    from reach.runtime.agent import Agent
    from reach.runtime.instance import Instance

EXAMPLES = (
    ("The agent named `agent` in my_agent.py of this folder", "reach run my_agent:agent"),
    ("A module that holds one agent needs no name", "reach run my_agent"),
    ("Several agents in one process", "reach run billing:agent stock:agent"),
    ("Start again whenever a Python file changes", "reach run my_agent:agent --watch"),
)

THREADS_S = 2.0
"""How long threads of handlers may take to end after the last answer."""

_STOP_S = 40.0
"""How long an agent may take to leave (it drains for 30 s at most) before it is killed."""


def run(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE:AGENT", help="Where the agents are, seen from this folder.", show_default=False
        ),
    ],
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Start again when a Python file below this folder changes.")
    ] = False,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """Serve agents from a module, until Ctrl-C.

    Calls that run are finished first; a second Ctrl-C does not wait for them. The folder you are in is where
    modules are looked for first. With --json one line is printed for each instance when it serves.
    """
    folder = Path.cwd()
    if watch:
        _watch(targets, folder=folder, url=url, as_json=as_json)
        return
    agents = load(targets, folder=folder)
    serve(agents, url=url, as_json=as_json)


def load(targets: list[str], *, folder: Path) -> list[Agent]:
    """Import the agents. Raises `Refusal` for what is not there, twice there, or serves nothing."""
    from reach.cli.locate import add_current_folder, find
    from reach.runtime.agent import Agent

    add_current_folder(folder)
    agents: list[Agent] = []
    for target in targets:
        agent = find(target, kind=Agent, folder=folder)
        if agent in agents:
            raise usage(f"{target} was given twice.")
        if not agent.capabilities:
            raise usage(
                f"{target} serves nothing yet.",
                fix="Decorate a function with @agent.capability('some.name'), in the module or what it imports.",
            )
        agents.append(agent)
    return agents


def serve(agents: list[Agent], *, url: str | None, as_json: bool) -> None:
    """Serve until a signal. Raises `Refusal` when there is no way to NATS."""
    from reach.bus.keys import Role
    from reach.bus.settings import resolve
    from reach.errors import ConfigError, Unreachable
    from reach.runtime.run import run as serve_agents

    try:
        settings = resolve(url, role=Role.AGENT)
        serve_agents(*agents, settings=settings, ready=_Announcer(settings, as_json=as_json))
    except Unreachable as error:
        raise Refusal(Exit.NO_CONNECTION, error.message) from None
    except ConfigError as error:
        raise Refusal(Exit.NO_CONNECTION, str(error)) from None
    threading.Thread(target=_end_without, args=(THREADS_S,), name="reach-end", daemon=True).start()


def _end_without(wait_s: float) -> None:
    """End the program although threads of its handlers go on: Python would wait for them for ever."""
    time.sleep(wait_s)  # Where there are none the program has ended long before, and this thread with it.
    from reach.cli import output

    left = [thread for thread in threading.enumerate() if not thread.daemon]
    names = [thread.name for thread in left if thread is not threading.main_thread()]
    output.say(f"Every call was answered. Threads that still run are left behind: {', '.join(names)}")
    sys.stdout.flush()
    os._exit(Exit.OK)


class _Announcer:
    """Tells when an instance serves."""

    def __init__(self, settings: Settings, *, as_json: bool) -> None:
        self._settings = settings
        self._as_json = as_json

    def __call__(self, instance: Instance) -> None:
        from reach.cli import output

        served = list(instance.capabilities)
        if self._as_json:
            output.line(
                output.compact({"status": "ready", "instance": instance.name, "capabilities": served})
            )
        else:
            output.say(
                f"✔ {instance.name} serves {', '.join(served)} at {self._settings.display}", style="green"
            )


# ------------------------------------------------------------------------------------------------------ watch


def _watch(targets: list[str], *, folder: Path, url: str | None, as_json: bool) -> None:
    from reach.cli import output

    command = [sys.executable, "-m", "reach.cli.main", "run", *targets]
    command += ["--url", url] if url else []
    command += ["--json"] if as_json else []
    changes = _changes(folder)
    child = _begin(command)
    try:
        for changed in changes:
            output.say(f"{changed} changed: starting again")
            _end(child)
            child = _begin(command)
    finally:
        _end(child)


def _begin(command: list[str]) -> subprocess.Popen[bytes]:
    """Start it on a leash: it ends with us, however we end, and hears of a Ctrl-C from nobody but us."""
    from reach.cli import leash

    held = [sys.executable, "-I", "-S", leash.__file__, str(_STOP_S), *command]
    return subprocess.Popen(held, stdin=subprocess.PIPE, start_new_session=True)


def _changes(folder: Path) -> Iterator[str]:
    """Give the name of a changed file each time something changed, until Ctrl-C."""
    try:
        from watchfiles import PythonFilter, watch
    except ImportError:
        message = "--watch needs the package watchfiles."
        raise Refusal(Exit.SETUP, message, fix="Install it: pip install watchfiles") from None
    for changes in watch(folder, watch_filter=PythonFilter()):
        yield Path(min(path for _, path in changes)).name


def _end(child: subprocess.Popen[bytes]) -> None:
    """Let it leave in order; not for ever."""
    if child.stdin is not None:
        child.stdin.close()
    try:
        child.wait(_STOP_S + 5)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
