"""Keeps a child's life inside its owner's, even when the owner is killed with -9.

Started by path, in a session of its own, with nothing but the standard library. It runs the command it was given
and takes it down (SIGTERM, then SIGKILL) when its standard input ends, which is when the owner closes it or is
gone, or when it gets SIGTERM itself. A Ctrl-C in the terminal reaches the owner only, who ends things in order.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from types import FrameType

_PR_SET_PDEATHSIG = 1  # prctl(2)
_POLL_S = 0.2


class _Stop(Exception):
    """SIGTERM arrived."""


def main(arguments: list[str]) -> int:
    """Run `[grace_s, command…]` until it ends, or the owner is gone; give the command's exit code."""
    grace_s, *command = arguments
    signal.signal(signal.SIGTERM, _on_sigterm)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)  # noqa: PLW1509 - this process has one thread
    with contextlib.suppress(_Stop):
        while child.poll() is None:
            # The owner never writes, so readable input is its end.
            if select.select([0], [], [], _POLL_S)[0]:
                break
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(float(grace_s))
        except subprocess.TimeoutExpired:
            child.kill()
    code = child.wait()
    # As shells do: a child that a signal ended is 128 and its number.
    return 128 - code if code < 0 else code


def _on_sigterm(_number: int, _frame: FrameType | None) -> None:
    raise _Stop


def _die_with_parent() -> None:
    """In the child, before it runs the command: let SIGINT in again, and have the kernel end it with this program."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.setpgrp()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
