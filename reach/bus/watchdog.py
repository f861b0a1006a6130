"""Keeps the embedded server's life inside its owner's, even when the owner is killed with -9.

This program is started by path, in a session of its own (a Ctrl-C in the terminal must not stop the server
before the owner has drained), and imports nothing but the standard library. It starts nats-server, tells
its pid in one line of JSON, then waits for the first of these and takes the server down:

- its standard input ends: the owner stopped it, or died (the owner alone holds the other end);
- the owner's process is gone, though a fork of it still holds that end;
- SIGTERM.

It holds the folder's lock until the server is gone, and so does the server: whoever gets the lock has the
data to itself. Should this program itself be killed, the kernel takes the server with it (Linux).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import FrameType

STOP_GRACE_S = 5.0
"""How long the server may take over its own shutdown before it is killed."""

POLL_S = 0.5
"""How often to look where the system has no descriptors for processes."""

_PR_SET_PDEATHSIG = 1  # prctl(2)


class _Stop(Exception):
    """SIGTERM arrived."""


def main(arguments: list[str]) -> int:
    """Run `nats-server` until the owner is gone.

    Args:
        arguments: pid of the owner, number of the inherited lock descriptor, record to remove at the end
            (`server.json`), then the server's command line.

    Returns:
        0 when the server was stopped as asked, 1 when it could not be started or ended by itself.
    """
    owner, lock, record, *command = arguments
    signal.signal(signal.SIGTERM, _on_sigterm)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            stderr=sys.stderr,
            pass_fds=(int(lock),),
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - this process has one thread
        )
    except OSError as exc:
        _tell({"errno": exc.errno, "error": exc.strerror})
        return 1
    try:
        _tell({"pid": server.pid})
        _wait(server, owner=int(owner))
    except _Stop:
        pass
    finally:
        ended_by_itself = server.poll() is not None
        # First of all, so that nobody finds a server that is about to end.
        with contextlib.suppress(OSError):
            os.unlink(record)  # noqa: PTH108 - pathlib would cost a third of this program's start
        _end(server)
    return 1 if ended_by_itself else 0


def _on_sigterm(_number: int, _frame: FrameType | None) -> None:
    raise _Stop


def _die_with_parent() -> None:
    """In the child, before it becomes nats-server: ask the kernel for SIGTERM when this program dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _tell(message: dict[str, object]) -> None:
    """One line to the owner, who then reads no further."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(message).encode() + b"\n")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _wait(server: subprocess.Popen[bytes], *, owner: int) -> None:
    """Return when the owner is gone or has closed its end, or the server has ended."""
    with contextlib.ExitStack() as descriptors:
        watched = [0]
        watched += descriptors.enter_context(_process_descriptor(owner))
        watched += descriptors.enter_context(_process_descriptor(server.pid))
        timeout_s = None if len(watched) == 3 else POLL_S  # noqa: PLR2004 - input, owner, server
        while os.getppid() == owner and server.poll() is None:
            ready, _, _ = select.select(watched, [], [], timeout_s)
            # The owner never writes, so readable input is its end.
            if ready:
                return


@contextlib.contextmanager
def _process_descriptor(pid: int) -> Iterator[list[int]]:
    """A descriptor that becomes readable when the process ends; none where the system has no such thing."""
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):
        yield []
        return
    try:
        yield [descriptor]
    finally:
        os.close(descriptor)


def _end(server: subprocess.Popen[bytes]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if server.poll() is None:
        server.terminate()
        try:
            server.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            server.kill()
    server.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
