"""NATS servers that are not ours to configure: with users by JWT that expire, and clusters.

`Users` runs a server in operator mode with a resolver in memory and issues logins that end when asked to;
`Cluster` runs several servers that know each other, each of which can be told to leave (lame duck).
"""

import base64
import hashlib
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import nkeys

from reach.bus.embedded import find_binary
from reach.bus.keys import Role
from reach.bus.settings import Settings, resolve

UP_S = 10.0
NO_LIMITS = dict.fromkeys(("subs", "data", "payload"), -1)


class BareServer:
    """One nats-server with a configuration of the test's own."""

    def __init__(self, folder: Path, name: str, config: str, *, port: int | None = None) -> None:
        self.port = port or free_port()
        self._config = folder / f"{name}.conf"
        self._log = folder / f"{name}.log"
        self._config.write_text(
            f"server_name: {name}\nhost: 127.0.0.1\nport: {self.port}\n"
            f"logfile: {json.dumps(str(self._log))}\n{config}\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        with self._log.open("ab") as errors:
            self._process = subprocess.Popen(
                [str(find_binary()), "--config", str(self._config)], stdout=errors, stderr=errors
            )
        until = time.monotonic() + UP_S
        while time.monotonic() < until:
            assert self.running, self.log
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=0.5).close()
            except OSError:
                time.sleep(0.01)
            else:
                return
        raise AssertionError(f"nats-server does not listen after {UP_S} s:\n{self.log}")

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.kill()  # One that leaves takes its time, and one that is stopped by a signal hears no other.
        self._process.wait()
        self._process = None


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# ---------------------------------------------------------------------------------------------- users by JWT


class Key:
    """An nkey of one kind."""

    def __init__(self, prefix: int) -> None:
        self.seed = bytes(nkeys.encode_seed(os.urandom(32), prefix))
        self._pair = nkeys.from_seed(bytearray(self.seed))
        self.public = self._pair.public_key.decode()

    def issue(self, subject: str, name: str, nats: dict[str, Any], *, expires_at: int | None = None) -> str:
        """Sign a JWT about another key, as nsc would."""
        claims: dict[str, Any] = {
            "iat": int(time.time()),
            "iss": self.public,
            "sub": subject,
            "name": name,
            "nats": {**nats, "version": 2},
        }
        if expires_at is not None:
            claims["exp"] = expires_at
        digest = hashlib.sha512(json.dumps(claims).encode()).digest()[:32]
        claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
        head = {"typ": "JWT", "alg": "ed25519-nkey"}
        text = f"{_part(json.dumps(head).encode())}.{_part(json.dumps(claims).encode())}"
        return f"{text}.{_part(self._pair.sign(text.encode()))}"


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class Users:
    """A server in operator mode. It has the face of a test's system: `env`, `settings`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        operator, system = Key(nkeys.PREFIX_BYTE_OPERATOR), Key(nkeys.PREFIX_BYTE_ACCOUNT)
        self._account = Key(nkeys.PREFIX_BYTE_ACCOUNT)
        self._keys = {role: Key(nkeys.PREFIX_BYTE_USER) for role in (Role.CALLER, Role.AGENT)}
        limits = {**NO_LIMITS, **dict.fromkeys(("imports", "exports", "conn", "leaf"), -1), "wildcards": True}
        account = {"type": "account", "limits": limits}
        accounts = {
            key.public: operator.issue(key.public, name, account)
            for key, name in ((self._account, "REACH"), (system, "SYS"))
        }
        preload = "\n".join(f"  {public}: {jwt}" for public, jwt in accounts.items())
        self.server = BareServer(
            folder,
            "operated",
            f"operator: {operator.issue(operator.public, 'O', {'type': 'operator'})}\n"
            f"system_account: {system.public}\nresolver: MEMORY\nresolver_preload: {{\n{preload}\n}}",
        )
        self.server.start()

    def path(self, role: Role) -> Path:
        return self._folder / f"{role}.creds"

    def issue(self, role: Role, *, lasts_s: float | None = None) -> int | None:
        """Write a role's login; when it expires, in epoch seconds."""
        key = self._keys[role]
        expires_at = None if lasts_s is None else int(time.time() + lasts_s)
        user = {"type": "user", "pub": {}, "sub": {}, **NO_LIMITS}
        jwt = self._account.issue(key.public, str(role), user, expires_at=expires_at)
        self.write(role, _CREDS.format(jwt=jwt, seed=key.seed.decode()))
        return expires_at

    def issue_all(self, *, lasts_s: float | None = None) -> float:
        """Write the logins of callers and agents; when the later one expires, in epoch seconds, or for ever."""
        ends = [self.issue(role, lasts_s=lasts_s) for role in (Role.CALLER, Role.AGENT)]
        return max(float("inf") if end is None else float(end) for end in ends)

    def write(self, role: Role, text: str) -> None:
        """Replace a role's login by this text."""
        fresh = self.path(role).with_suffix(".new")
        fresh.write_text(text)
        fresh.chmod(0o600)
        fresh.replace(self.path(role))

    @property
    def env(self) -> dict[str, str]:
        return {
            **os.environ,
            "REACH_URL": self.server.url,
            "REACH_CREDS": str(self.path(Role.AGENT)),
            "REACH_RECORDS": "off",
        }

    def settings(self, role: Role) -> Settings:
        return resolve(self.server.url, role=role, env={"REACH_CREDS": str(self.path(role))})


_CREDS = """-----BEGIN NATS USER JWT-----
{jwt}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------
"""


# ---------------------------------------------------------------------------------------------- clusters


class Cluster:
    """Servers that route to each other, without logins. It has the face of a test's system, at its first server."""

    def __init__(self, folder: Path, number: int = 2) -> None:
        routes = [free_port() for _ in range(number)]
        listed = ", ".join(f"nats-route://127.0.0.1:{port}" for port in routes)
        self.servers = [
            BareServer(
                folder,
                f"n{index}",
                f"cluster {{ name: c, host: 127.0.0.1, port: {port}, routes: [{listed}], pool_size: -1 }}\n"
                'lame_duck_duration: "30s"\nlame_duck_grace_period: "5s"',
            )
            for index, port in enumerate(routes)
        ]

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "REACH_URL": self.servers[0].url, "REACH_RECORDS": "off"}

    def settings(self, role: Role) -> Settings:
        return Settings(servers=(self.servers[0].url,), role=role, source="the test")

    def stop(self) -> None:
        for server in self.servers:
            server.stop()
