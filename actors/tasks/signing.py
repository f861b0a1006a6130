"""The secrets that callbacks are signed with: one a tenant, as Standard Webhooks has it (`whsec_…`).

Each follows from one key of the platform (HMAC-SHA256), so there is nothing to store, all platforms of one login
sign alike, and what one tenant knows signs nothing for another. The key is REACH_WEBHOOK_KEY where that is set
(set it to keep secrets when logins change), else the platform's own login.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from standardwebhooks import Webhook

from reach.bus.settings import Settings
from reach.errors import ConfigError

KEY: Final = "REACH_WEBHOOK_KEY"
_PURPOSE: Final = b"agent-reach: callbacks, 1"
_LEAST: Final = 24


class Signer:
    """Signs callbacks."""

    def __init__(self, material: bytes) -> None:
        self._key = hmac.digest(material, _PURPOSE, hashlib.sha256)

    @classmethod
    def of(cls, settings: Settings, env: Mapping[str, str] = os.environ) -> Signer:
        """Make the signer of a platform. Raises `ConfigError` for a key too short, or a file that is not read."""
        if given := env.get(KEY, ""):
            if len(given) < _LEAST:
                raise ConfigError(
                    f"{KEY} has {len(given)} characters; right would be {_LEAST} or more, at random."
                )
            return cls(given.encode())
        return cls(_login(settings) or os.urandom(32))

    def secret(self, tenant: str) -> str:
        """Give a tenant's secret, for its receivers."""
        raw = hmac.digest(self._key, tenant.encode(), hashlib.sha256)
        return "whsec_" + base64.b64encode(raw).decode()

    def headers(self, tenant: str, message_id: str, body: str, *, now_ms: int) -> dict[str, str]:
        """Sign a body; gives the headers of Standard Webhooks."""
        at = datetime.fromtimestamp(now_ms // 1000, UTC)
        return {
            "webhook-id": message_id,
            "webhook-timestamp": str(now_ms // 1000),
            "webhook-signature": Webhook(self.secret(tenant)).sign(
                msg_id=message_id, timestamp=at, data=body
            ),
        }


def _login(settings: Settings) -> bytes:
    login = settings.credentials
    file = login.nkey_file or login.creds_file
    if file is None:
        return ":".join(filter(None, (login.user, login.password, login.token))).encode()
    try:
        return file.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"The platform's login cannot be read: {file}: {error.strerror}.") from error
