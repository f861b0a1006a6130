"""Names that we make up.

Ids are 16 characters of lower-case base32 (80 random bits), which fits a subject token and can be read
aloud; an instance is `<agent_id>-<8 characters>`; a generation is its start in milliseconds. Trace and
span ids have the sizes of W3C trace context so that they pass through other systems unchanged.
The system's randomness is turned into letters in blocks and handed out in slices: three ids a call, made one
by one, would show in a profile.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable

_BLOCK = 4096
_is_ours = re.compile(r"[a-z2-7]{16}").fullmatch
_ALPHABET = b"abcdefghijklmnopqrstuvwxyz234567"
# 256 is eight times 32: each letter stands for as many bytes as any other.
_LETTERS = bytes(_ALPHABET[byte % len(_ALPHABET)] for byte in range(256))


def _base32(data: bytes) -> str:
    return data.translate(_LETTERS).decode()


class _Letters:
    """A block of random letters, handed out in slices."""

    __slots__ = ("_at", "_encode", "_text")

    def __init__(self, encode: Callable[[bytes], str]) -> None:
        self._encode = encode
        self._text = ""
        self._at = 0

    def take(self, size: int) -> str:
        """Give `size` letters that nobody else was given."""
        end = self._at + size
        if end > len(self._text):
            self._text = self._encode(os.urandom(_BLOCK))
            self._at, end = 0, size
        piece = self._text[self._at : end]
        self._at = end
        return piece

    def forget(self) -> None:
        """Start a new block: after a fork parent and child would hand out the same letters."""
        self._text = ""
        self._at = 0


_words = _Letters(_base32)
_hex = _Letters(bytes.hex)
os.register_at_fork(after_in_child=_words.forget)
os.register_at_fork(after_in_child=_hex.forget)


def new_id() -> str:
    """Make a 16-character id."""
    return _words.take(16)


def reach_id() -> str:
    """Make the id by which a call can be explained afterwards (`rch_` and 16 characters)."""
    return "rch_" + _words.take(16)


def reach_id_of(message_id: str) -> str:
    """Give the id by which the call of a message can be explained: the same at its caller and at its agent.

    `rch_` before an id of ours; what others number in their own way is digested into the same form.
    """
    if _is_ours(message_id) is None:
        message_id = _base32(hashlib.sha256(message_id.encode("utf-8", "replace")).digest()[:16])
    return "rch_" + message_id


def instance_id(agent_id: str) -> str:
    """Make an instance name for one start of an agent."""
    return f"{agent_id}-{_words.take(8)}"


def generation() -> int:
    """Give the generation of something that starts now: wall time in milliseconds."""
    return int(time.time() * 1000)


def trace_id() -> str:
    """Make a W3C trace id (32 hexadecimal digits)."""
    return _hex.take(32)


def trace_and_span() -> tuple[str, str]:
    """Make both ids of a trace that begins."""
    both = _hex.take(48)
    return both[:32], both[32:]


def span_id() -> str:
    """Make a W3C span id (16 hexadecimal digits)."""
    return _hex.take(16)
