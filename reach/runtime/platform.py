"""The platform process: the system's actors, and users' own, on one NATS.

It is started by `platform_command`, isolated from its surroundings: neither the current folder nor PYTHONPATH
nor a user's site folder counts, and the folder that holds this very code is first on its path, so that a user's
own `actors` or `schemas` packages are never taken for ours. Started any other way it replaces itself by such a
process. It makes the buckets, starts the actors, prints one line when all of them run, and stops in order on
SIGTERM, or when its standard input ends if asked to watch it.

Exit codes: 0 stopped, 1 actors failed past their limit, 2 wrong arguments, 3 NATS not reached, 4 something is
not as it must be.
"""

from __future__ import annotations

import argparse
import logging
import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import anyio

from reach.bus.connection import Connection
from reach.bus.keys import Role
from reach.bus.provision import provision
from reach.bus.settings import Settings, resolve
from reach.bus.state import StateFolder
from reach.bus.streams import usual_replicas
from reach.bus.translate import translate
from reach.errors import ConfigError, LinkDown, ReachError
from reach.policy.inherit import Inheritance
from reach.runtime.child import ChildSpec, Escalated, RoleUnavailable
from reach.runtime.host import Host
from reach.runtime.sources import collect, given, installed

READY: Final = "Platform ready"
"""How the one line on standard output begins."""

ROOT: Final = Path(__file__).resolve().parents[2]
"""The folder that holds `reach` and `actors`: site-packages, or the checkout."""

_BOOT: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from reach.runtime.platform import main; sys.exit(main())"
)

_LOGINS: Final = ("REACH_CREDS", "REACH_NKEY", "REACH_USER", "REACH_PASSWORD", "REACH_TOKEN")
_FENCER_LOGINS: Final = {"REACH_FENCER_CREDS": "REACH_CREDS", "REACH_FENCER_NKEY": "REACH_NKEY"}
_STDIN: Final = 0
_READ_BYTES: Final = 4096

_log = logging.getLogger("reach.platform")


class Exit(IntEnum):
    """What the process's exit code means; the numbers are those of the command line."""

    STOPPED = 0
    FAILED = 1
    NO_CONNECTION = 3
    SETUP = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a platform process does.

    Attributes:
        home: State folder, with the keys of every role.
        url: A NATS of one's own; None is the server of the state folder.
        actors: More actors, as `[name=]module:attribute`.
        paths: Folders to import them from; they come last on the path and shadow nothing.
        replicas: Copies of the buckets and streams; None is three in a cluster, else one.
        watch_stdin: Stop when standard input ends, as it does when whoever holds the other end dies.
    """

    home: Path
    url: str | None = None
    actors: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()
    replicas: int | None = None
    watch_stdin: bool = False


def platform_command(
    home: Path,
    *,
    url: str | None = None,
    actors: Sequence[str] = (),
    paths: Sequence[Path] = (),
    replicas: int | None = None,
    watch_stdin: bool = False,
) -> list[str]:
    """Give the command line of a platform process; see `Plan` for the arguments.

    With `watch_stdin` start it with a pipe as standard input, and keep the other end.
    """
    command = [sys.executable, "-I", "-c", _BOOT, str(ROOT), "--home", str(home.absolute())]
    if url is not None:
        command += ["--url", url]
    for actor in actors:
        command += ["--actor", actor]
    for path in paths:
        command += ["--path", str(path.absolute())]
    if replicas is not None:
        command += ["--replicas", str(replicas)]
    if watch_stdin:
        command.append("--watch-stdin")
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a platform process to its end; the exit code."""
    plan = _parse(sys.argv[1:] if arguments is None else arguments)
    if not sys.flags.isolated:
        command = platform_command(
            plan.home,
            url=plan.url,
            actors=plan.actors,
            paths=plan.paths,
            replicas=plan.replicas,
            watch_stdin=plan.watch_stdin,
        )
        os.execv(command[0], command)  # noqa: S606 - ourselves, without what surrounds us
    if plan.watch_stdin or sys.stderr.isatty():
        # Under `reach up`, or by hand: what it says stands among what a person reads.
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    else:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        anyio.run(serve, plan, backend_options={"use_uvloop": find_spec("uvloop") is not None})
    except Escalated as error:
        return _fail(Exit.FAILED, f"{error.path} gave up. {error.reason}.")
    except ConfigError as error:
        return _fail(Exit.SETUP, str(error))
    except ReachError as error:
        return _fail(Exit.NO_CONNECTION, error.message)
    return Exit.STOPPED


async def serve(plan: Plan) -> None:
    """Host the actors until told to stop.

    Raises:
        ConfigError: an actor, a key, a bucket or the path is not as it must be.
        ReachError: NATS cannot be reached, or went away while the buckets were made.
        Escalated: the actors failed past their limit.
    """
    if plan.watch_stdin:
        _check_stdin()
    Inheritance.of(os.environ)  # The supervisor's; what is wrong there is told before anything starts.
    specs = load_actors(plan)
    connection = await connect_as(Role.PLATFORM, plan)
    try:
        with _nats_errors_told():
            replicas = plan.replicas or usual_replicas(connection.server_info)
            changed = await provision(connection.jetstream(), replicas=replicas)
        if changed:
            _log.info("stores made or changed: %s", ", ".join(changed))

        def ready() -> None:
            hosted = ", ".join(spec.name for spec in specs)
            sys.stdout.write(f"{READY} at {connection.settings.display}: {hosted}\n")
            sys.stdout.flush()

        host = Host(connection, specs, name="platform", connect=lambda role: connect_as(role, plan))
        await host.run(ready=ready, until=_stdin_ends if plan.watch_stdin else None)
    finally:
        await connection.close()


def load_actors(plan: Plan) -> list[ChildSpec]:
    """Find and import what is to be hosted.

    Raises:
        ConfigError: there is none, one cannot be loaded, or `actors` is not ours.
    """
    for path in plan.paths:
        if str(path) not in sys.path:
            sys.path.append(str(path))
    sources = collect([*installed(), *(given(text) for text in plan.actors)])
    if not sources:
        raise ConfigError(
            "There is no actor to host: Agent-Reach is not installed here, only on the path. "
            "Install it (pip install agent-reach; in a checkout: pip install -e .), or name actors (--actor)."
        )
    _check_ours()
    return [source.load() for source in sources]


async def connect_as(role: Role, plan: Plan) -> Connection:
    """Open a connection to the plan's NATS.

    Raises:
        RoleUnavailable: a NATS of one's own, and nobody gave a login for its system account.
        ConfigError: the key or login is not as it must be, or was refused.
        Unreachable: nobody answers there.
    """
    return await Connection.open(settings_of(role, plan), role=role.value)


def settings_of(role: Role, plan: Plan, env: Mapping[str, str] = os.environ) -> Settings:
    """Find how a role connects.

    The state folder's server has a key for each role. At a NATS of one's own (`url`) the environment's login is
    the platform's, and the fencer, who lives in the system account, has REACH_FENCER_NKEY or REACH_FENCER_CREDS.

    Raises:
        RoleUnavailable: the fencer has no login there.
        ConfigError: something named is wrong.
    """
    ours = {**env, "REACH_HOME": str(plan.home)}
    if plan.url is None:
        for name in ("REACH_URL", "REACH_CONTEXT", *_LOGINS):
            ours.pop(name, None)
        return resolve(role=role, env=ours)
    if role is not Role.FENCER:
        return resolve(plan.url, role=role, env=ours)
    for name in _LOGINS:
        ours.pop(name, None)
    ours.update({plain: env[name] for name, plain in _FENCER_LOGINS.items() if env.get(name)})
    settings = resolve(plan.url, role=role, env=ours)
    if settings.credentials.kind == "none":
        raise RoleUnavailable(
            f"No login for the system account of {settings.display}. "
            f"Right would be {' or '.join(_FENCER_LOGINS)}, naming a file."
        )
    return settings


def _check_ours() -> None:
    """Refuse to run somebody else's `actors`, whatever it was that put them first."""
    spec = find_spec("actors")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if places and Path(places[0]).resolve() != ROOT / "actors":
        raise ConfigError(
            f"The package `actors` is found at {places[0]}, and ours is at {ROOT / 'actors'}. "
            "Something puts another folder first; start the platform by `reach up`."
        )


def _check_stdin() -> None:
    try:
        kind = os.fstat(_STDIN).st_mode
    except OSError:
        kind = 0
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
        raise ConfigError("--watch-stdin needs a pipe as standard input, whose other end the starter keeps.")


async def _stdin_ends() -> None:
    while True:
        await anyio.wait_readable(_STDIN)
        if not os.read(_STDIN, _READ_BYTES):
            return


@contextmanager
def _nats_errors_told() -> Iterator[None]:
    """Turn what nats-py raises into ours, with what it said."""
    try:
        yield
    except (ConfigError, ReachError):
        raise
    except LinkDown as error:
        raise ConfigError(
            "The connection to NATS was lost while the buckets were made. Start again."
        ) from error
    except Exception as error:
        kind = translate(error)
        raise ConfigError(
            f"The buckets could not be made: {type(error).__name__} ({kind.reason})."
        ) from error


def _fail(code: Exit, message: str) -> int:
    sys.stderr.write(f"reach platform: {message}\n")
    return code


def _parse(arguments: Sequence[str]) -> Plan:
    parser = argparse.ArgumentParser(
        prog="python -m reach.runtime.platform",
        description="Host the system's actors; `reach up` starts this.",
    )
    parser.add_argument("--home", type=Path, help="state folder (default: as everywhere, see REACH_HOME)")
    parser.add_argument("--url", help="a NATS of your own, in place of the state folder's server")
    parser.add_argument("--actor", action="append", default=[], metavar="[NAME=]MODULE:CLASS")
    parser.add_argument("--path", action="append", default=[], type=Path, help="where to import them from")
    parser.add_argument(
        "--replicas", type=int, help="copies of all that is kept (default: 3 in a cluster, else 1)"
    )
    parser.add_argument("--watch-stdin", action="store_true", help="stop when standard input ends")
    found = parser.parse_args(arguments)
    return Plan(
        home=(found.home or StateFolder.locate().path).absolute(),
        url=found.url,
        actors=tuple(found.actor),
        paths=tuple(path.absolute() for path in found.path),
        replicas=found.replicas,
        watch_stdin=found.watch_stdin,
    )


if __name__ == "__main__":
    sys.exit(main())
