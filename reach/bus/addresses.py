"""Addresses of NATS servers: read as people write them, checked, and stripped of what must not be shown.

A login in an address (`nats://user:password@host`, `nats://token@host`) is taken out, decoded and returned
apart, so that an address can be logged and shown wherever it goes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib.util import find_spec
from urllib.parse import SplitResult, unquote, urlsplit

from reach.errors import ConfigError

PORT = 4222
"""NATS's own."""

_SCHEMES = ("nats", "tls", "ws", "wss")


@dataclass(frozen=True, slots=True)
class InlineLogin:
    """What stood before the `@`: user and password, or a token alone."""

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


def parse_servers(text: str, *, source: str) -> tuple[tuple[str, ...], InlineLogin | None]:
    """Addresses without login, and the login that stood in them.

    Args:
        text: One address, or several with commas; scheme and port may be left out.
        source: How messages name where the text came from.

    Raises:
        ConfigError: an address is not one, or they do not go together.
    """
    servers: list[str] = []
    logins: list[InlineLogin] = []
    for item in text.split(","):
        parts = _split(item.strip(), source=source, shown=redact(text))
        servers.append(_rebuild(parts))
        if parts.username is not None:
            logins.append(_login(parts))
    if len({server.startswith("ws") for server in servers}) > 1:
        raise ConfigError(f"{source} mixes WebSocket and plain addresses. Use one kind for all.")
    if servers[0].startswith("ws") and find_spec("aiohttp") is None:
        raise ConfigError(
            f"{source} is a WebSocket address, which needs one more package: pip install aiohttp"
        )
    if len(set(logins)) > 1:
        raise ConfigError(
            f"{source} gives different logins for its servers. One login must do for all of them."
        )
    return tuple(servers), logins[0] if logins else None


def redact(text: str) -> str:
    """What may be shown of addresses: nothing between the first scheme and the last `@`.

    A password may hold commas, spaces, slashes, even an `@`: nobody can tell where it ends, so all of it goes.
    """
    head, at, tail = text.rpartition("@")
    scheme = re.match(r"\s*[a-zA-Z]+://", head)
    return f"{scheme[0] if scheme else ''}***@{tail}" if at else text


def _split(item: str, *, source: str, shown: str) -> SplitResult:
    right = "Right would be nats://host:4222 (or tls://, ws://, wss://)."
    try:
        parts = urlsplit(item if "://" in item else f"nats://{item}")
        port = parts.port
    except ValueError:
        raise ConfigError(f"{source} is not an address: {shown!r}. {right}") from None
    if parts.scheme not in _SCHEMES:
        raise ConfigError(f"{source} starts with {parts.scheme}://, which is not NATS: {shown!r}. {right}")
    if not parts.hostname or port == 0 or re.search(r"\s", item):
        raise ConfigError(f"{source} is not an address: {shown!r}. {right}")
    if (parts.path.strip("/") and not parts.scheme.startswith("ws")) or parts.query or parts.fragment:
        raise ConfigError(f"{source} has more than host and port: {shown!r}. {right}")
    return parts


def _rebuild(parts: SplitResult) -> str:
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    if parts.scheme.startswith("ws"):
        return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"
    return f"{parts.scheme}://{host}:{parts.port or PORT}"


def _login(parts: SplitResult) -> InlineLogin:
    user = unquote(parts.username or "")
    if parts.password is None:
        return InlineLogin(token=user)
    return InlineLogin(user=user, password=unquote(parts.password))
