"""Who may connect: the roles, and the key of each.

A key is an nkey seed in a file of its own (`<role>.nk`): a client signs the server's challenge with it, and
the server knows only the public half, so no secret travels or stands in a configuration. Keys are made
once. When two starters race, the first link to the final name wins and the other reads what won.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from reach.bus.state import PRIVATE_FOLDER_MODE, check_private_file, check_private_folder
from reach.errors import ConfigError

SEED_BYTES = 32
"""An Ed25519 seed."""

_SEED_PREFIX = 18 << 3  # "S": what an encoded seed starts with.
_USER_PREFIX = 20 << 3  # "U": a key of a user, as against an account, an operator or a server.
_CHECKSUM_BYTES = 2


class Role(StrEnum):
    """What a connection may do; see `reach.bus.permissions` for the exact list.

    `connect()` is *caller*, a serving agent *agent*, the command line *operator*; *platform* and *fencer*
    belong to the platform process. The fencer lives in the system account: it alone sees disconnects and
    may kick.
    """

    CALLER = "caller"
    AGENT = "agent"
    OPERATOR = "operator"
    PLATFORM = "platform"
    FENCER = "fencer"


@dataclass(frozen=True, slots=True)
class RoleKey:
    """Where a role's seed is, and its public half (`U...`, 56 characters)."""

    role: Role
    path: Path
    public_key: str


def key_path(folder: Path, role: Role) -> Path:
    """The seed file of a role."""
    return folder / f"{role}.nk"


def ensure_keys(folder: Path) -> dict[Role, RoleKey]:
    """Make the keys that are missing; check and read all of them. Safe against several starters at once.

    Raises:
        ConfigError: the folder or a key is not ours, open to others, damaged, or cannot be written.
    """
    try:
        folder.mkdir(mode=PRIVATE_FOLDER_MODE, exist_ok=True)
        check_private_folder(folder, what="Folder of keys")
        for role in Role:
            _create_once(key_path(folder, role))
    except OSError as exc:
        raise ConfigError(
            f"Keys cannot be written to {folder}: {exc.strerror}. "
            "Make room or make it writable, or set REACH_HOME to another folder."
        ) from exc
    return {role: read_key(folder, role) for role in Role}


def read_key(folder: Path, role: Role) -> RoleKey:
    """Check and read one role's key.

    Raises:
        ConfigError: it is missing, not ours, open to others, or not a seed of a user.
    """
    path = checked_key(folder, role)
    return RoleKey(role=role, path=path, public_key=_public_key(read_seed(path, what=_named(role))))


def checked_key(folder: Path, role: Role) -> Path:
    """The seed file of a role, after every check.

    Raises:
        ConfigError: it is missing, not ours, open to others, or not a seed of a user.
    """
    check_private_folder(folder, what="Folder of keys")
    path = key_path(folder, role)
    check_private_file(path, what=_named(role))
    read_seed(path, what=_named(role))
    return path


def read_seed(path: Path, *, what: str) -> bytes:
    """Read and verify an nkey seed of a user (`SU...`).

    Raises:
        ConfigError: the file cannot be read, or what is in it is not such a seed. The message never shows it.
    """
    try:
        seed = path.read_bytes().strip()
    except OSError as exc:
        raise ConfigError(f"{what}: {path} cannot be read: {exc.strerror}.") from exc
    if fault := _seed_fault(seed):
        raise ConfigError(
            f"{what}: {path} {fault}. Right would be one line, the seed of a user key: it starts with SU."
        )
    return seed


def new_seed() -> bytes:
    """A fresh seed of a user key, from the system's randomness."""
    import nkeys  # noqa: PLC0415 - brings libsodium, which only whoever makes or publishes keys needs

    return bytes(nkeys.encode_seed(os.urandom(SEED_BYTES), nkeys.PREFIX_BYTE_USER))


def _public_key(seed: bytes) -> str:
    import nkeys  # noqa: PLC0415 - as above

    return str(nkeys.from_seed(bytearray(seed)).public_key.decode())


def _named(role: Role) -> str:
    return f"Key of role {role}"


def _seed_fault(seed: bytes) -> str | None:
    """What is wrong with an encoded seed, its checksum included; None when nothing is."""
    try:
        raw = base64.b32decode(seed + b"=" * (-len(seed) % 8))
    except binascii.Error:
        return "is not an nkey seed"
    body, checksum = raw[:-_CHECKSUM_BYTES], raw[-_CHECKSUM_BYTES:]
    if len(body) != SEED_BYTES + 2 or body[0] & 0b11111000 != _SEED_PREFIX:
        return "is not an nkey seed"
    if binascii.crc_hqx(body, 0).to_bytes(_CHECKSUM_BYTES, "little") != checksum:
        return "is damaged (its checksum does not match)"
    if (body[0] & 0b111) << 5 | body[1] >> 3 != _USER_PREFIX:
        return "is the seed of an account, operator or server, not of a user"
    return None


def _create_once(path: Path) -> None:
    """Write a new seed unless there is one; the final name appears with its content complete."""
    if path.exists():
        return
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(new_seed() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # Another starter was first: its key is the key.
            path.hardlink_to(temporary)
    finally:
        Path(temporary).unlink(missing_ok=True)
