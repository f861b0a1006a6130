"""How `reach pipe --out` can be killed at any moment and run again: the output is its own journal.

Output lines are in input order, one for each line that is not blank, so counting the complete ones tells how far
it got; a torn last line is cut off. A small file beside it (`FILE.journal`) holds eight bytes for each line, its
digest, written *before* the line is sent. From it a second run knows two things more: that its input is the
same, and which lines had been sent but were not answered. Those may have been executed; only the caller of
this module can say whether doing them again is safe.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from reach import ids
from reach.cli.exits import Exit, Refusal, usage

_VERSION = 1
_DIGEST_BYTES = 8
_OVER = "--overwrite starts over."
_START = b'{"line":'
"""How every output line begins."""


def digest(content: bytes) -> bytes:
    """Give the digest of an input line."""
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Past:
    """What earlier runs did: lines `answered` (of them `failed`), and the digests of those that were sent."""

    answered: int = 0
    failed: int = 0
    sent: tuple[bytes, ...] = ()

    def check(self, index: int, content: bytes, number: int) -> None:
        """Refuse an input whose line is another one than was sent then. Raises `Refusal`."""
        if index < len(self.sent) and self.sent[index] != digest(content):
            raise usage(
                f"The input is not the one that this output was begun with: line {number} differs.",
                fix=f"Give the same input, another --out, or {_OVER}",
            )


class Journal:
    """An output file with its journal; both locked while a run lasts."""

    def __init__(self, out: int, side: int, past: Past, run: str) -> None:
        self._out = out
        self._side = side
        self.past = past
        self.run = run
        """A name that all runs of this output share."""

    @classmethod
    def open(cls, path: Path, *, capability: str, overwrite: bool = False) -> Self:
        """Begin, or go on where an earlier run ended.

        Raises:
            Refusal: the files are not those of such a run, belong to another capability, or are in use.
        """
        side_path = path.with_name(path.name + ".journal")
        try:
            side = os.open(side_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            _lock(side, path)
            out = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            if overwrite:
                os.ftruncate(out, 0)
                os.ftruncate(side, 0)
            past, run = _past(path, out, side_path, side, capability=capability)
        except OSError as error:
            raise Refusal(
                Exit.SETUP, f"{error.filename or path} cannot be written: {error.strerror}."
            ) from None
        return cls(out, side, past, run)

    def sending(self, content: bytes) -> None:
        """Note that a line is about to be sent. Raises `OSError`."""
        _write_all(self._side, digest(content))

    def write(self, text: str) -> None:
        """Append one line of output. Raises `OSError`."""
        _write_all(self._out, text.encode() + b"\n")

    def close(self) -> None:
        """Let go of both files."""
        os.close(self._out)
        os.close(self._side)


def _lock(side: int, path: Path) -> None:
    try:
        fcntl.flock(side, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Refusal(Exit.SETUP, f"Another `reach pipe` writes to {path} right now.") from None


def _write_all(descriptor: int, content: bytes) -> None:
    """Write in one call where the system takes it, so that a kill finds all of it or nothing."""
    while content:
        content = content[os.write(descriptor, content) :]


# ------------------------------------------------------------------------------------------ reading the past


def _past(path: Path, out: int, side_path: Path, side: int, *, capability: str) -> tuple[Past, str]:
    header, _, records = _read_all(side).partition(b"\n")
    begun_with = _capability(header)
    if begun_with is None:
        # Fresh, or killed while beginning. A file with something in it is somebody's: nothing of it is touched.
        if _size(out):
            message = f"{path} exists, and is not the output of a `reach pipe` that could go on."
            raise usage(message, fix=f"Give another --out, or {_OVER}")
        os.ftruncate(side, 0)
        os.lseek(side, 0, os.SEEK_SET)
        run = ids.new_id()
        begun = {"reach_pipe": _VERSION, "capability": capability, "run": run}
        _write_all(side, json.dumps(begun).encode() + b"\n")
        return Past(), run
    if begun_with != capability:
        message = f"{path} was begun with {begun_with}, not {capability}."
        raise usage(message, fix=f"Give another --out, or {_OVER}")
    answered, failed = _answered(path, out)
    whole = len(records) - len(records) % _DIGEST_BYTES
    os.ftruncate(side, len(header) + 1 + whole)
    os.lseek(side, 0, os.SEEK_END)
    sent = tuple(records[at : at + _DIGEST_BYTES] for at in range(0, whole, _DIGEST_BYTES))
    if len(sent) < answered:
        message = f"{side_path} is damaged: it knows {len(sent)} lines, and {path} has {answered}."
        raise Refusal(Exit.SETUP, message, fix=f"Give another --out, or {_OVER}")
    return Past(answered, failed, sent), _run(header)


def _answered(path: Path, out: int) -> tuple[int, int]:
    """Count the complete output lines, all and failed; cut a torn one off."""
    answered = failed = end = 0
    with os.fdopen(os.dup(out), "rb") as lines:
        lines.seek(0)
        for text in lines:
            complete = text.endswith(b"\n")
            ok = _outcome(text) if complete else None
            if ok is None and (complete or not _START.startswith(text[: len(_START)])):
                message = f"{path} exists, and its line {answered + 1} was not written by `reach pipe`."
                raise usage(message, fix=f"Give another --out, or {_OVER}")
            if not complete:
                break
            answered += 1
            failed += not ok
            end += len(text)
    if end != _size(out):
        os.ftruncate(out, end)
    return answered, failed


def _outcome(text: bytes) -> bool | None:
    """Whether an output line tells of success; None when it is none of ours."""
    try:
        said: Any = json.loads(text)
    except ValueError:
        return None
    ok = said.get("ok") if isinstance(said, dict) and "line" in said else None
    return ok if isinstance(ok, bool) else None


def _capability(header: bytes) -> str | None:
    """What the run that wrote a journal's first line called; None when that is not such a line."""
    try:
        said = json.loads(header)
    except ValueError:
        return None
    if not isinstance(said, dict) or said.get("reach_pipe") != _VERSION:
        return None
    return str(said.get("capability", ""))


def _run(header: bytes) -> str:
    """Give the name that a run has had since it began; one that has none is named after how it began."""
    return str(json.loads(header).get("run") or digest(header).hex())


def _read_all(descriptor: int) -> bytes:
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        return file.read()


def _size(descriptor: int) -> int:
    return os.fstat(descriptor).st_size
