"""Where NATS is and as whom to log in: found once, in a fixed order, with errors that name what to change.

The first of these decides:

1. `url` or `context` given by the program,
2. `REACH_URL`,
3. `REACH_CONTEXT`, a context of the `nats` command line tool,
4. the local server that `reach up` started (state folder).

Credentials in `REACH_CREDS`, `REACH_NKEY`, `REACH_USER` and `REACH_PASSWORD`, or `REACH_TOKEN` count before
those that come with the address. Without any, the local server gets the key of the role. Passwords and
tokens are never
shown: not in `repr`, not in messages, not in `display`.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from reach.bus.addresses import InlineLogin, parse_servers
from reach.bus.keys import Role, checked_key, read_seed
from reach.bus.nats_context import NatsContext, read_context
from reach.bus.state import ServerInfo, StateFolder, check_private_file
from reach.errors import ConfigError

CONNECT_TIMEOUT_S = 5.0
PING_INTERVAL_S = 20.0
"""NATS's own 120 s would leave a dead link unnoticed for minutes."""

_ENV_LOGINS = ("REACH_CREDS", "REACH_NKEY", "REACH_USER", "REACH_PASSWORD", "REACH_TOKEN")
_CONTEXT_LOGINS = ("creds", "nkey", "user", "password", "token")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """One way to log in, or none; `source` says where it came from."""

    nkey_file: Path | None = None
    creds_file: Path | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    source: str = ""

    @property
    def kind(self) -> str:
        """`nkey`, `creds`, `user`, `token`, or `none`."""
        for kind, value in (
            ("nkey", self.nkey_file),
            ("creds", self.creds_file),
            ("user", self.user),
            ("token", self.token),
        ):
            if value is not None:
                return kind
        return "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files and names for TLS; None is the system's default."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    hostname: str | None = None
    handshake_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything needed to log in.

    Attributes:
        servers: Addresses, without user or password.
        role: As whom.
        source: Where the address came from, for messages.
        credentials: How to log in.
        tls: None where nothing was said; `tls://` addresses then use the system's certificates.
        connect_timeout_s: How long the first connection may take, all servers together.
        ping_interval_s: How often the link is tested.
        name: Name of the connection on the server; the connection sets its own where None.
        inbox_prefix: Prefix of reply subjects; the connection sets its own where None.
        jetstream_domain: Where JetStream lives elsewhere than on the server itself.
    """

    servers: tuple[str, ...]
    role: Role
    source: str
    credentials: Credentials = field(default_factory=Credentials)
    tls: Tls | None = None
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    ping_interval_s: float = PING_INTERVAL_S
    name: str | None = None
    inbox_prefix: str | None = None
    jetstream_domain: str | None = None

    @property
    def display(self) -> str:
        """The addresses as they may be shown."""
        return ", ".join(self.servers)

    @property
    def wants_tls(self) -> bool:
        """Whether plain text would betray what was asked for."""
        return self.tls is not None or any(server.startswith(("tls:", "wss:")) for server in self.servers)

    def to_nats_options(self) -> dict[str, Any]:
        """Keyword arguments for nats-py's `Client.connect`.

        Raises:
            ConfigError: a certificate or its key cannot be loaded.
        """
        login = self.credentials
        options: dict[str, Any] = {
            "servers": list(self.servers),
            "connect_timeout": self.connect_timeout_s,
            "ping_interval": self.ping_interval_s,
            "name": self.name,
            "nkeys_seed": str(login.nkey_file) if login.nkey_file else None,
            "user_credentials": str(login.creds_file) if login.creds_file else None,
            "user": login.user,
            "password": login.password,
            "token": login.token,
        }
        if self.inbox_prefix:
            options["inbox_prefix"] = self.inbox_prefix
        if self.tls is not None:
            options["tls"] = _ssl_context(self.tls)
            options["tls_hostname"] = self.tls.hostname
            options["tls_handshake_first"] = self.tls.handshake_first
        return {name: value for name, value in options.items() if value is not None}


def resolve(
    url: str | None = None,
    *,
    role: Role,
    env: Mapping[str, str] = os.environ,
    context: str | None = None,
) -> Settings:
    """Find NATS, and check everything that can be checked without connecting.

    Args:
        url: Address, or several with commas: `nats://host:4222`, `tls://…`, `ws://…`, `wss://…`, `host:port`.
        role: Whose key to take at the local server.
        env: The environment.
        context: Name of a context of the `nats` tool; `selected` is the selected one.

    Raises:
        ConfigError: there is no NATS to be found, or something named is wrong.
    """
    if url and context:
        raise ConfigError("Both a url and a context were given. Give one of them.")
    if url:
        found = _from_url(url, role=role, source="the url given", env=env)
    elif context:
        found = _from_context(read_context(context, env), role=role, env=env)
    elif env.get("REACH_URL"):
        found = _from_url(env["REACH_URL"], role=role, source="REACH_URL", env=env)
    elif env.get("REACH_CONTEXT"):
        found = _from_context(read_context(env["REACH_CONTEXT"], env), role=role, env=env)
    else:
        found = _from_state(StateFolder.locate(env), role=role, env=env)
    return replace(found, tls=_tls(found.tls, env))


# --------------------------------------------------------------------------------------- the sources


def _from_url(text: str, *, role: Role, source: str, env: Mapping[str, str]) -> Settings:
    servers, login = parse_servers(text, source=source)
    inline = _inline(login, source)
    named = _env_credentials(env)
    if inline and named:
        raise ConfigError(
            f"{source} carries a login of its own, and {named.source} is set. Keep one of them."
        )
    credentials = named or inline
    if credentials is None and (local := _local_server(servers, env)) is not None:
        credentials = _role_key(StateFolder(Path(local.home)).check(), role)
    return Settings(servers=servers, role=role, source=source, credentials=credentials or Credentials())


def _from_context(context: NatsContext, *, role: Role, env: Mapping[str, str]) -> Settings:
    source = f"nats context {context.name}"
    servers, login = parse_servers(context.url, source=f"url in {context.path}")
    own = _one_login(context.logins(), names=_CONTEXT_LOGINS, where=f" in {context.path}")
    tls = Tls(
        ca=_path(context.ca, what=f"ca in {context.path}"),
        cert=_path(context.cert, what=f"cert in {context.path}"),
        key=_secret_path(context.key, what=f"key in {context.path}"),
        handshake_first=context.tls_first,
    )
    return Settings(
        servers=servers,
        role=role,
        source=source,
        credentials=_env_credentials(env) or own or _inline(login, source) or Credentials(),
        tls=tls if tls != Tls() else None,
        inbox_prefix=context.inbox_prefix or None,
        jetstream_domain=context.jetstream_domain or None,
    )


def _from_state(folder: StateFolder, *, role: Role, env: Mapping[str, str]) -> Settings:
    cure = "Start one with `reach up`, or set REACH_URL=nats://host:4222 to use one that runs."
    info = folder.check().read_server() if folder.path.exists() else None
    if info is None:
        raise ConfigError(f"No NATS found: none runs for {folder.path}, and REACH_URL is not set. {cure}")
    if not info.is_alive:
        raise ConfigError(
            f"No NATS found: the one recorded in {folder.server} ({info.url}, pid {info.pid}) is gone. {cure}"
        )
    return Settings(
        servers=(info.url,),
        role=role,
        source=f"state folder {folder.path}",
        credentials=_env_credentials(env) or _role_key(folder, role),
    )


def _local_server(servers: tuple[str, ...], env: Mapping[str, str]) -> ServerInfo | None:
    """The local server, if that is what the address means: `reach up` shows it, and people copy it."""
    parts = urlsplit(servers[0])
    if len(servers) != 1 or parts.hostname not in _LOOPBACK:
        return None
    folder = StateFolder.locate(env)
    info = folder.read_server() if folder.server.exists() else None
    return info if info is not None and info.port == parts.port and info.is_alive else None


def _role_key(folder: StateFolder, role: Role) -> Credentials:
    return Credentials(
        nkey_file=checked_key(folder.keys, role), source=f"key of role {role} in {folder.keys}"
    )


# --------------------------------------------------------------------------------------- credentials


def _env_credentials(env: Mapping[str, str]) -> Credentials | None:
    return _one_login(env, names=_ENV_LOGINS)


def _inline(login: InlineLogin | None, source: str) -> Credentials | None:
    if login is None:
        return None
    if login.token:
        return Credentials(token=login.token, source=source)
    return Credentials(user=login.user, password=login.password, source=source)


def _one_login(said: Mapping[str, str], *, names: Sequence[str], where: str = "") -> Credentials | None:
    """The one way to log in among five fields, named in the order creds, nkey, user, password, token.

    Raises:
        ConfigError: more than one way, half of one, or a file that is not what it should be.
    """
    creds, nkey, user, password, token = (said.get(name, "") for name in names)
    creds_name, nkey_name, user_name, password_name, token_name = names
    given = ((creds_name, creds), (nkey_name, nkey), (user_name, user or password), (token_name, token))
    ways = [name for name, value in given if value]
    if not ways:
        return None
    if len(ways) > 1:
        raise ConfigError(f"{' and '.join(ways)}{where} are both set. Keep one way to log in.")
    source = f"{ways[0]}{where}"
    if creds:
        return Credentials(creds_file=_creds_file(creds, what=source), source=source)
    if nkey:
        return Credentials(nkey_file=_nkey_file(nkey, what=source), source=source)
    if token:
        return Credentials(token=token, source=source)
    if not user or not password:
        raise ConfigError(f"{user_name} and {password_name}{where} belong together, and one is missing.")
    return Credentials(user=user, password=password, source=source)


def _creds_file(text: str, *, what: str) -> Path:
    path = Path(text).expanduser()
    check_private_file(path, what=what, owned=False)
    content = path.read_bytes()
    if b"BEGIN NATS USER JWT" not in content or b"BEGIN USER NKEY SEED" not in content:
        raise ConfigError(
            f"{what}: {path} is not a credentials file. Right would be what `nsc generate creds` writes: "
            "a user JWT and a user seed. (For a seed alone use REACH_NKEY.)"
        )
    return path


def _nkey_file(text: str, *, what: str) -> Path:
    path = Path(text).expanduser()
    if text.startswith("SU") and not path.exists():
        raise ConfigError(
            f"{what} holds a seed itself. Right would be the path of a file (mode 0600) that holds it."
        )
    check_private_file(path, what=what, owned=False)
    read_seed(path, what=what)
    return path


# ----------------------------------------------------------------------------------------------- TLS


def _tls(given: Tls | None, env: Mapping[str, str]) -> Tls | None:
    """What the environment says, over what the context said."""
    base = given or Tls()
    first = env.get("REACH_TLS_FIRST", "").lower()
    if first not in _YES | _NO:
        raise ConfigError(f"REACH_TLS_FIRST is {first!r}. Right would be 1 or 0.")
    tls = Tls(
        ca=_path(env.get("REACH_TLS_CA", ""), what="REACH_TLS_CA") or base.ca,
        cert=_path(env.get("REACH_TLS_CERT", ""), what="REACH_TLS_CERT") or base.cert,
        key=_secret_path(env.get("REACH_TLS_KEY", ""), what="REACH_TLS_KEY") or base.key,
        hostname=env.get("REACH_TLS_HOSTNAME") or base.hostname,
        handshake_first=first in _YES if first else base.handshake_first,
    )
    if (tls.cert is None) != (tls.key is None):
        missing = "REACH_TLS_KEY" if tls.key is None else "REACH_TLS_CERT"
        raise ConfigError(f"A TLS certificate and its key belong together, and {missing} is missing.")
    return tls if tls != Tls() else None


def _path(text: str, *, what: str) -> Path | None:
    if not text:
        return None
    path = Path(text).expanduser()
    if not path.is_file():
        raise ConfigError(f"{what}: {path} does not exist, or is not a file.")
    if not os.access(path, os.R_OK):
        raise ConfigError(f"{what}: {path} cannot be read by this user.")
    return path


def _secret_path(text: str, *, what: str) -> Path | None:
    if not text:
        return None
    path = Path(text).expanduser()
    check_private_file(path, what=what, owned=False)
    return path


def _ssl_context(tls: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=str(tls.ca) if tls.ca else None)
        if tls.cert and tls.key:
            context.load_cert_chain(str(tls.cert), str(tls.key))
    except (OSError, ssl.SSLError) as exc:
        files = ", ".join(str(path) for path in (tls.ca, tls.cert, tls.key) if path)
        raise ConfigError(
            f"TLS files do not load ({files}): {exc}. "
            "Right would be PEM files, and the key of that certificate."
        ) from exc
    return context
