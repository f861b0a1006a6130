"""Contexts of the `nats` command line tool, as `nats context add` writes them.

A context is a JSON file that names a server and how to log in there. It is used only when asked for by name:
a context that happens to be selected on this machine may well lead to production.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reach.bus.state import check_private_file
from reach.errors import ConfigError

SELECTED = "selected"
"""The name that stands for the context chosen with `nats context select`."""

DEFAULT_URL = "nats://127.0.0.1:4222"
"""What the tool takes for a context without an address."""

_NAME = re.compile(r"[\w.-]+")

_UNSUPPORTED = {
    "socks_proxy": "connect without a proxy, or by a local tunnel",
    "nsc": "export credentials with `nsc generate creds` and name the file as `creds`",
    "user_jwt": "keep JWT and seed in one file and name it as `creds`",
    "user_seed": "keep JWT and seed in one file and name it as `creds`",
    "jetstream_api_prefix": "use `jetstream_domain`",
    "windows_cert_store": "name files as `cert`, `key` and `ca`",
}
"""Fields that change where we connect, or as whom, and that we cannot follow; and what to do instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsContext:
    """What one context file says; paths are expanded, "" and False are unsaid."""

    name: str
    path: Path
    url: str
    creds: str = ""
    nkey: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    cert: str = ""
    key: str = ""
    ca: str = ""
    inbox_prefix: str = ""
    jetstream_domain: str = ""
    tls_first: bool = False

    def logins(self) -> dict[str, str]:
        """The fields that log in, by name."""
        return {
            "creds": self.creds,
            "nkey": self.nkey,
            "user": self.user,
            "password": self.password,
            "token": self.token,
        }


def context_folder(env: Mapping[str, str]) -> Path:
    """`$XDG_CONFIG_HOME/nats`, else `~/.config/nats`."""
    if xdg := env.get("XDG_CONFIG_HOME"):
        return Path(xdg) / "nats"
    return _home(env) / ".config" / "nats"


def read_context(name: str, env: Mapping[str, str] = os.environ) -> NatsContext:
    """Read a context by name; `selected` is the one chosen with `nats context select`.

    Raises:
        ConfigError: there is none of this name, it cannot be read, or it needs what we do not have.
    """
    folder = context_folder(env)
    if name == SELECTED:
        name = _selected(folder)
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name of a nats context. Right would be letters, digits, '.', '_', '-'."
        )
    path = folder / "context" / f"{name}.json"
    record = _read(path, name)
    for unsupported, instead in _UNSUPPORTED.items():
        if record.get(unsupported):
            raise ConfigError(
                f"nats context {name} ({path}) uses {unsupported!r}, which Reach cannot: {instead}."
            )
    if record.get("password") or record.get("token"):
        check_private_file(path, what=f"nats context {name}, which holds a secret", owned=False)
    return NatsContext(
        name=name,
        path=path,
        url=_text(record, "url", path) or DEFAULT_URL,
        creds=_file(record, "creds", path, env),
        nkey=_file(record, "nkey", path, env),
        user=_text(record, "user", path),
        password=_text(record, "password", path),
        token=_text(record, "token", path),
        cert=_file(record, "cert", path, env),
        key=_file(record, "key", path, env),
        ca=_file(record, "ca", path, env),
        inbox_prefix=_text(record, "inbox_prefix", path),
        jetstream_domain=_text(record, "jetstream_domain", path),
        tls_first=record.get("tls_first") is True,
    )


def _selected(folder: Path) -> str:
    try:
        name = (folder / "context.txt").read_text(encoding="utf-8").strip()
    except OSError:
        name = ""
    if not name:
        raise ConfigError(
            f"No nats context is selected ({folder / 'context.txt'}). "
            "Select one with `nats context select`, or name one in REACH_CONTEXT."
        )
    return name


def _read(path: Path, name: str) -> dict[str, object]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        there = ", ".join(sorted(file.stem for file in path.parent.glob("*.json"))) or "none"
        raise ConfigError(
            f"There is no nats context {name!r} ({path}). There are: {there}. "
            f"Add it with `nats context add {name}`."
        ) from None
    except (OSError, ValueError) as exc:
        raise ConfigError(f"nats context {name} ({path}) cannot be read: {exc}.") from exc
    if not isinstance(record, dict):
        raise ConfigError(f"nats context {name} ({path}) is not a JSON object.")
    return record


def _text(record: Mapping[str, object], key: str, path: Path) -> str:
    value = record.get(key) or ""
    if not isinstance(value, str):
        raise ConfigError(f"{key!r} in {path} is not a text.")
    return value


def _file(record: Mapping[str, object], key: str, path: Path, env: Mapping[str, str]) -> str:
    """A path as the tool writes it: `~`, `$NAME` and `file://` are expanded."""
    value = _text(record, key, path)
    if value.startswith("file://"):
        value = value.removeprefix("file://")
    elif re.match(r"[a-z]+:", value) and not Path(value).exists():
        scheme = value.partition(":")[0]
        raise ConfigError(
            f"{key!r} in {path} is a {scheme}: reference, which Reach cannot follow. Name a file."
        )
    value = re.sub(r"\$(\w+|\{\w+\})", lambda match: env.get(match[1].strip("{}"), ""), value)
    return str(_home(env)) + value[1:] if value == "~" or value.startswith("~/") else value


def _home(env: Mapping[str, str]) -> Path:
    return Path(env["HOME"]) if env.get("HOME") else Path.home()
