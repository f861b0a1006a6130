"""A server's accounts as configuration: the system's, ours, and one for each test that runs.

Whatever lives in a NATS account is invisible to every other: subjects, streams, buckets. So each test gets an
account of its own with the users and permissions that a real one has, at a server that is started only once.
NATS's configuration is a superset of JSON, so it is written as JSON. Pure: from keys to text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from reach.bus.keys import Role
from reach.bus.permissions import ACCOUNT, SYSTEM_ACCOUNT, permissions

Keys = Mapping[Role, str]
"""Public nkey of each role."""


def accounts_text(server: Keys, tests: Mapping[str, Keys]) -> str:
    """Give the `accounts` part of a configuration: `server`'s own users, and those of each test by account name.

    The fencer is the server's alone: it belongs to the system account, which sees all others.
    """
    accounts: dict[str, Any] = {
        SYSTEM_ACCOUNT: {"users": [_user(Role.FENCER, server[Role.FENCER])]},
        ACCOUNT: _account(server),
    }
    accounts.update((name, _account(keys)) for name, keys in tests.items())
    return f"system_account: {SYSTEM_ACCOUNT}\naccounts: {json.dumps(accounts, indent=1)}\n"


def _account(keys: Keys) -> dict[str, Any]:
    users = [_user(role, key) for role, key in keys.items() if role is not Role.FENCER]
    return {"jetstream": "enabled", "users": users}


def _user(role: Role, key: str) -> dict[str, Any]:
    granted = permissions(role)
    if granted is None:
        return {"nkey": key}
    rules: dict[str, Any] = {
        "publish": {"allow": list(granted.publish)},
        "subscribe": {"allow": list(granted.subscribe)},
    }
    if granted.responses is not None:
        rules["allow_responses"] = {
            "max": granted.responses.max_messages,
            "expires": f"{granted.responses.ttl_s}s",
        }
    return {"nkey": key, "permissions": rules}
