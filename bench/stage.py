"""The stage: one embedded server with our users and permissions, and two processes for each contender.

All processes live through the whole run, and only one pair works at a time. What cannot be had here (a package
that is not installed, no node) is left out, with the reason.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from bench import moleculer
from bench.contenders import CONTENDERS, REACH
from bench.process import PeerProcess
from reach.bus.connection import Connection
from reach.bus.embedded import ANY_PORT, EmbeddedServer
from reach.bus.keys import Role
from reach.bus.provision import provision
from reach.bus.settings import Settings, resolve

LABELS: Final = {**{one.name: one.label for one in CONTENDERS.values()}, "moleculer": "Moleculer (Node)"}
"""All contenders that can be asked for, by name, in the order of tables."""

RECORDS_FILE: Final = "records.jsonl"
_ASK_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Pair:
    """The two processes of a contender."""

    name: str
    caller: PeerProcess
    agent: PeerProcess

    def about(self) -> dict[str, Any]:
        """Ask what runs there."""
        return self.caller.ask({"do": "about"}, timeout_s=_ASK_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Stage:
    """Everything that runs.

    Attributes:
        home: State folder of the server.
        server: The server.
        pairs: Contenders by name, in the order in which they take turns.
        left_out: Why a contender that was asked for is not there.
    """

    home: Path
    server: EmbeddedServer
    pairs: Mapping[str, Pair]
    left_out: Mapping[str, str]

    @property
    def records(self) -> Path:
        """The file of the records of Reach's calls."""
        return self.home.parent / RECORDS_FILE


@contextmanager
def open_stage(names: Sequence[str]) -> Iterator[Stage]:
    """Start everything; end it all when the block ends, however it ends.

    Raises:
        ConfigError: the server does not start.
        PeerFailed: a process of a contender does not.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reach-bench-")))
        server = stack.enter_context(start_server(folder))
        pairs: dict[str, Pair] = {}
        left_out: dict[str, str] = {}
        for name in names:
            try:
                sides = _commands(name, folder)
            except (metadata.PackageNotFoundError, moleculer.NotHere) as missing:
                left_out[name] = str(missing) or "it is not installed"
                continue
            pairs[name] = _start(name, sides, folder, stack)
        yield Stage(home=folder / "home", server=server, pairs=pairs, left_out=left_out)


def start_server(folder: Path) -> EmbeddedServer:
    """Start the embedded server of `folder`, with the buckets that the platform makes. Raises `ConfigError`."""
    server = EmbeddedServer.start(folder / "home", port=ANY_PORT)
    try:
        asyncio.run(_provision(resolve(role=Role.PLATFORM, env=environment(folder))))
    except BaseException:
        server.stop()
        raise
    return server


async def _provision(settings: Settings) -> None:
    connection = await Connection.open(settings, role=Role.PLATFORM.value)
    try:
        await provision(connection.jetstream())
    finally:
        await connection.close()


@dataclass(frozen=True, slots=True)
class _Sides:
    answers: list[str]
    calls: list[str]
    env: dict[str, str]


def _commands(name: str, folder: Path) -> _Sides:
    """Give how a contender's processes are started. Raises what says that it cannot be had."""
    if name in CONTENDERS:
        CONTENDERS[name].versions()
        command = [sys.executable, "-m", "bench.peer"]
        env = environment(folder)
        if name == REACH.name:
            env["REACH_RECORDS"] = str(folder / RECORDS_FILE)
        return _Sides([*command, "answers", name], [*command, "calls", name], env)
    settings = resolve(role=moleculer.ROLE, env=environment(folder))
    return _Sides(
        moleculer.command("answers", settings),
        moleculer.command("calls", settings),
        moleculer.environment(moleculer.install()),
    )


def environment(folder: Path) -> dict[str, str]:
    """Give the environment of a process that finds the server of `folder`, and no other one."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("REACH_")}
    root = str(Path(__file__).parents[1])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (root, env.get("PYTHONPATH"))))
    env["REACH_HOME"] = str(folder / "home")
    return env


def _start(name: str, sides: _Sides, folder: Path, stack: ExitStack) -> Pair:
    agent = PeerProcess(
        f"the answering side of {name}", sides.answers, env=sides.env, log=folder / f"{name}-answers.log"
    )
    stack.enter_context(agent)
    agent.wait_ready()
    caller = PeerProcess(
        f"the calling side of {name}", sides.calls, env=sides.env, log=folder / f"{name}-calls.log"
    )
    stack.enter_context(caller)
    caller.wait_ready()
    return Pair(name, caller, agent)
