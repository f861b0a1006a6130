"""The secret of an instance: what orders to it carry, so that nobody but the platform can order it about.

It follows from the instance's name and generation and from a key of the platform, so that a new leader with the
same login knows it without having been told. The key is derived from the platform's own login (HMAC-SHA256) and
never leaves the process. Platforms with different logins have different secrets: then instances register again
when the leader changes. Without any login the key is random.
"""

from __future__ import annotations

import hashlib
import hmac
import os

from reach.bus.settings import Credentials, Settings
from reach.errors import ConfigError

_PURPOSE = b"agent-reach: orders to instances, 1"


class Seal:
    """Gives each instance its secret."""

    __slots__ = ("_key",)

    def __init__(self, material: bytes) -> None:
        self._key = hmac.digest(material, _PURPOSE, hashlib.sha256)

    @classmethod
    def of(cls, settings: Settings) -> Seal:
        """Make the seal that follows from a login. Raises `ConfigError` when its file cannot be read."""
        return cls(_material(settings.credentials) or os.urandom(32))

    def secret(self, instance: str, generation: int) -> str:
        """Give the secret of one start of one instance: 32 hexadecimal digits."""
        text = f"{instance}:{generation}".encode()
        return hmac.digest(self._key, text, hashlib.sha256)[:16].hex()


def _material(login: Credentials) -> bytes:
    file = login.nkey_file or login.creds_file
    if file is None:
        return ":".join(filter(None, (login.user, login.password, login.token))).encode()
    try:
        return file.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"The platform's login cannot be read: {file}: {error.strerror}.") from error
