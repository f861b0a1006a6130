"""Names that we make up.

Ids are 16 characters of lower-case base32 (80 random bits), which fits a subject token and can be read
aloud; an instance is `<agent_id>-<8 characters>`; a generation is its start in milliseconds. Trace and
span ids have the sizes of W3C trace context so that they pass through other systems unchanged.
Random bytes come from the system in blocks, because one call a message would show in a profile.
"""

from __future__ import annotations

import base64
import os
import time

_BLOCK = 4096


class _Entropy:
    """A block of system randomness, handed out in slices; refilled in the child after a fork."""

    __slots__ = ("_at", "_bytes", "_pid")

    def __init__(self) -> None:
        self._bytes = b""
        self._at = 0
        self._pid = 0

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._bytes) or self._pid != os.getpid():
            self._bytes = os.urandom(_BLOCK)
            self._pid = os.getpid()
            self._at, end = 0, size
        piece = self._bytes[self._at : end]
        self._at = end
        return piece


_entropy = _Entropy()


def new_id() -> str:
    """Make a 16-character id."""
    return base64.b32encode(_entropy.take(10)).decode().lower()


def reach_id() -> str:
    """Make the id by which a call can be explained afterwards (`rch_` and 16 characters)."""
    return "rch_" + new_id()


def instance_id(agent_id: str) -> str:
    """Make an instance name for one start of an agent."""
    return f"{agent_id}-{base64.b32encode(_entropy.take(5)).decode().lower()}"


def generation() -> int:
    """Give the generation of something that starts now: wall time in milliseconds."""
    return int(time.time() * 1000)


def trace_id() -> str:
    """Make a W3C trace id (32 hexadecimal digits)."""
    return _entropy.take(16).hex()


def span_id() -> str:
    """Make a W3C span id (16 hexadecimal digits)."""
    return _entropy.take(8).hex()
