"""The state folder: what one local Reach owns on this machine, and who may believe it.

It holds the keys of every role, the configuration, log and data of the embedded NATS server, and
`server.json`, by which `reach.connect()` finds that server. Whoever can write here can pose as the
platform, so the folder is 0700, its keys are 0600, all belong to the user, and this is checked each time
before anything in it is believed.

A recorded server is believed alive when its process is the very one that was recorded (a number alone may
have been given to another process since), or when it still greets with the identity that was recorded.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Self

from reach.bus.greeting import read_greeting
from reach.errors import ConfigError

PRIVATE_FOLDER_MODE = 0o700
PRIVATE_FILE_MODE = 0o600
OTHERS = 0o077
"""Permission bits that let anybody but the owner in."""

GREETING_TIMEOUT_S = 0.5
"""A local server greets within a millisecond; half a second allows for a machine that is very busy."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The embedded server as `server.json` records it.

    Attributes:
        url: `nats://host:port`, without credentials.
        host: Where it listens, as configured (`0.0.0.0` possible; `url` then names loopback).
        port: The client port.
        monitor: URL of the HTTP monitor; always None, there is none.
        pid: Process id of nats-server.
        process: Identity of that process which a reused pid cannot have (boot id and start time), or ""
            where the system does not tell.
        server_id: Identity the server chose for this run; its greeting repeats it.
        version: Version of nats-server.
        started_at: Unix time in seconds.
        home: The state folder.
    """

    url: str
    host: str
    port: int
    monitor: None
    pid: int
    process: str
    server_id: str
    version: str
    started_at: float
    home: str

    @property
    def is_alive(self) -> bool:
        """Whether the recorded server still runs; never blocks longer than half a second."""
        if self.process and process_identity(self.pid) == self.process:
            return True
        return self.answers()

    def answers(self, *, timeout_s: float = GREETING_TIMEOUT_S) -> bool:
        """Whether the server recorded here, and no other one, answers at its address."""
        greeting = read_greeting(*self.address, timeout_s=timeout_s)
        return greeting is not None and greeting.server_id == self.server_id

    @property
    def address(self) -> tuple[str, int]:
        """Where a client on this machine reaches it."""
        return client_host(self.host), self.port

    def to_json(self) -> str:
        """The content of `server.json`."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote.

        Raises:
            ValueError: the text is not such a record.
        """
        record = json.loads(text)
        names = {field.name for field in fields(cls)}
        if not isinstance(record, dict) or not names <= record.keys():
            raise ValueError("it is not the record of a server")
        info = cls(**{name: record[name] for name in names})
        if any(type(record[name]) is not int for name in ("port", "pid")) or "://" not in str(record["url"]):
            raise ValueError("its port, pid or url is none")
        return info


@dataclass(frozen=True, slots=True)
class StateFolder:
    """Names of what is in a state folder, and the checks before it is believed."""

    path: Path

    @classmethod
    def locate(cls, env: Mapping[str, str] = os.environ) -> Self:
        """`REACH_HOME`, else `$XDG_STATE_HOME/agent-reach`, else `~/.local/state/agent-reach`.

        Nothing is created or read.
        """
        if home := env.get("REACH_HOME"):
            return cls(Path(home).expanduser().absolute())
        if xdg := env.get("XDG_STATE_HOME"):
            return cls(Path(xdg).expanduser().absolute() / "agent-reach")
        user = Path(env["HOME"]) if env.get("HOME") else Path.home()
        return cls(user.absolute() / ".local" / "state" / "agent-reach")

    @property
    def keys(self) -> Path:
        """Folder of nkey seeds, one file a role."""
        return self.path / "keys"

    @property
    def data(self) -> Path:
        """JetStream's store; it survives restarts."""
        return self.path / "data"

    @property
    def config(self) -> Path:
        """Configuration of the embedded server, written anew at each start."""
        return self.path / "nats.conf"

    @property
    def log(self) -> Path:
        """Log of the embedded server."""
        return self.path / "nats.log"

    @property
    def lock(self) -> Path:
        """Locked as long as a server of this folder runs, starts or stops."""
        return self.path / "lock"

    @property
    def server(self) -> Path:
        """Record of the running server; see `ServerInfo`."""
        return self.path / "server.json"

    @property
    def last_port(self) -> Path:
        """The port last used, so that a restarted server is found where clients look for it."""
        return self.path / "last_port"

    def create(self) -> Self:
        """Make the folder where it is missing, and check it.

        Raises:
            ConfigError: it cannot be made, is not ours, or lets others in.
        """
        try:
            self.path.mkdir(mode=PRIVATE_FOLDER_MODE, parents=True, exist_ok=True)
        except FileExistsError:
            raise ConfigError(
                f"State folder {self.path} is a file. Remove it, or set REACH_HOME to a folder of yours."
            ) from None
        except OSError as exc:
            raise ConfigError(
                f"State folder {self.path} cannot be created: {exc.strerror}. "
                "Set REACH_HOME to a folder that you may write to."
            ) from exc
        return self.check()

    def check(self) -> Self:
        """Refuse a folder that somebody else could have written to.

        Raises:
            ConfigError: it is missing, not a folder, not ours, or lets others in.
        """
        check_private_folder(self.path, what="State folder")
        return self

    def read_server(self) -> ServerInfo | None:
        """The recorded server, alive or not; None when none is recorded.

        Raises:
            ConfigError: the record cannot be read.
        """
        try:
            text = self.server.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"{self.server} cannot be read ({exc}). Remove it and run `reach up`.") from exc
        try:
            return ServerInfo.from_json(text)
        except ValueError as exc:
            raise ConfigError(f"{self.server} is damaged ({exc}). Remove it and run `reach up`.") from exc


def client_host(host: str) -> str:
    """The address by which a client on this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - no bind


def check_private_folder(path: Path, *, what: str) -> None:
    """Refuse a folder that is missing, not ours, or that others may enter.

    Raises:
        ConfigError: with the command that puts it right.
    """
    status = _status(path, what=what)
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"{what} {path} is not a folder. Remove it, or name another one.")
    _check_owner(path, status, what=what)
    if status.st_mode & OTHERS:
        raise ConfigError(
            f"{what} {path} is open to other users (mode {stat.S_IMODE(status.st_mode):04o}): "
            f"what is in it cannot be believed. Right would be: chmod 700 {path}"
        )


def check_private_file(path: Path, *, what: str, owned: bool = True) -> None:
    """Refuse a secret file that is missing, unreadable, not ours, or open to others.

    Args:
        path: The file.
        what: How messages name it, such as `Key of role caller`.
        owned: Also require that it belongs to the user. (Files that a platform mounts need not.)

    Raises:
        ConfigError: with the command that puts it right.
    """
    status = _status(path, what=what)
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{what}: {path} is not a file.")
    if owned:
        _check_owner(path, status, what=what)
    if status.st_mode & OTHERS:
        raise ConfigError(
            f"{what}: {path} is open to other users (mode {stat.S_IMODE(status.st_mode):04o}). "
            f"Right would be: chmod 600 {path} (a mounted secret: mode 0400)."
        )
    if not os.access(path, os.R_OK):
        raise ConfigError(f"{what}: {path} cannot be read by this user. Right would be: chmod 600 {path}")


def write_private(path: Path, text: str) -> None:
    """Write a 0600 file in one step: a reader sees the old content or the new, never a part.

    Raises:
        OSError: as the file system says.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)  # noqa: PTH105 - two plain strings
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def process_identity(pid: int) -> str:
    """A text that only this process of this boot has; "" when it is gone, or the system does not tell.

    A process that has ended but was not yet collected by its parent counts as gone.
    """
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
    # The name, in parentheses, may itself hold spaces and parentheses: count from the last one.
    state, *numbers = line.rpartition(")")[2].split()
    start_ticks = numbers[18]  # Field 22 of proc(5), of which `state` is field 3.
    return "" if state in {"Z", "X"} else f"{boot}:{start_ticks}"


def _status(path: Path, *, what: str) -> os.stat_result:
    try:
        return path.stat()
    except FileNotFoundError:
        raise ConfigError(f"{what}: {path} does not exist.") from None
    except OSError as exc:
        raise ConfigError(f"{what}: {path} cannot be examined: {exc.strerror}.") from exc


def _check_owner(path: Path, status: os.stat_result, *, what: str) -> None:
    user = os.geteuid()
    if status.st_uid != user:
        raise ConfigError(
            f"{what}: {path} belongs to user id {status.st_uid}, and this process runs as {user}. "
            "Run as its owner, or set REACH_HOME to a folder of your own."
        )
