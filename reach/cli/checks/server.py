"""The part of the way from here to NATS: its name, its port, what listens there, and whether it lets us in."""

from __future__ import annotations

import asyncio
import re
import socket
from urllib.parse import urlsplit

from reach import ids
from reach.bus.connection import Connection
from reach.bus.greeting import Greeting, read_greeting
from reach.bus.keys import Role
from reach.cli.checks.finding import Check, Finding, Patient, bad, good, told
from reach.errors import CallTimeout, ConfigError, ReachError, Unreachable
from reach.wire import subjects

OLDEST_SERVER = (2, 11)
"""The first version with a time to live for single entries of a bucket, which leases are made of."""

_TIMEOUT_S = 2.0
_DEFAULT_PORTS = {"ws": 80, "wss": 443}


async def name(patient: Patient) -> Finding:
    """At least one server's name leads to an address."""
    unknown = []
    for host, port in _places(patient):
        try:
            await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError:
            unknown.append(host)
        else:
            return good(host)
    source = patient.known_settings.source
    return bad(
        f"The name {' and '.join(unknown)} (from {source}) leads to no address.",
        fix="Correct the host name, or check that this machine's DNS knows it (getent hosts NAME).",
    )


async def port(patient: Patient) -> Finding:
    """At least one server's port is open."""
    shut = []
    for host, number in _places(patient):
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                _, writer = await asyncio.open_connection(host, number)
        except (OSError, TimeoutError) as error:
            shut.append(f"{host}:{number} ({_why(error)})")
            continue
        writer.close()
        return good(f"{host}:{number} is open")
    return bad(
        f"Nothing listens at {', '.join(shut)}.",
        fix="Start the server there, correct the address, or open the way (firewall, container port).",
    )


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_TIMEOUT_S:g} s"
    return "refused" if isinstance(error, ConnectionRefusedError) else type(error).__name__


async def speaks_nats(patient: Patient) -> Finding:
    """What listens is a NATS server, and new enough."""
    settings = patient.known_settings
    if settings.servers[0].startswith("ws") or (settings.tls and settings.tls.handshake_first):
        return good("cannot be told before logging in (WebSocket, or TLS first)")
    silent = []
    for host, number in _places(patient):
        greeting = await asyncio.to_thread(read_greeting, host, number, timeout_s=_TIMEOUT_S)
        if greeting is None:
            silent.append(f"{host}:{number}")
            continue
        return _judge(greeting)
    return bad(
        f"What listens at {', '.join(silent)} does not speak NATS.",
        fix="Another program has that port. Point REACH_URL at NATS (its client port, 4222 by default; "
        "8222 is its monitoring).",
    )


def _judge(greeting: Greeting) -> Finding:
    version = tuple(int(part) for part in re.findall(r"\d+", greeting.version)[:2])
    if version < OLDEST_SERVER:
        wanted = ".".join(str(part) for part in OLDEST_SERVER)
        return bad(
            f"nats-server is {greeting.version}, and Reach needs {wanted} or newer.",
            fix="Update that server, or use the one that comes with Reach: reach up",
        )
    return good(f"nats-server {greeting.version}")


async def login(patient: Patient) -> Finding:
    """The server lets us in."""
    try:
        patient.connection = await Connection.open(patient.known_settings, role=Role.OPERATOR.value)
    except ConfigError as error:
        return _refused(patient, error)
    except Unreachable as error:
        return told(error.message)
    return good(f"logged in as {Role.OPERATOR}")


def _refused(patient: Patient, error: ConfigError) -> Finding:
    login_used = patient.known_settings.credentials
    if login_used.kind == "none":
        return bad(
            "The server wants credentials, and none are given.",
            fix="Set REACH_NKEY=/path/of/seed.nk or REACH_CREDS=/path/of/user.creds.",
        )
    if patient.is_local and login_used.source.startswith("key of role"):
        return bad(
            f"The server does not know the {login_used.source}: it was made after the server started.",
            fix="Stop `reach up` and start it again: it tells the server about its keys.",
        )
    finding = told(str(error))
    return bad(
        f"The server refuses the credentials ({login_used.kind}, from {login_used.source}).",
        fix=f"Ask whoever runs it for ones that it knows. {finding.fix}",
    )


async def permission(patient: Patient) -> Finding:
    """We may call at all, and nobody hides from us that nobody is there."""
    denied: list[str] = []

    def note(text: str) -> None:
        denied.append(text)

    patient.link.denials.append(note)
    # A capability that nobody serves: the broker itself answers, at once, that nobody is there.
    subject = subjects.cap("reach-doctor." + ids.new_id())
    try:
        await patient.link.request(subject, b"{}", timeout_s=_TIMEOUT_S)
    except Unreachable:
        return good("calls may be sent")
    except CallTimeout:
        pass
    except ReachError as error:
        return told(error.message)
    finally:
        patient.link.denials.remove(note)
    if denied:
        return bad(
            f"The broker denies calls to {patient.known_settings.credentials.source}: {_subject_of(denied[0])}.",
            fix="Use the key of role caller or operator; on a NATS of your own grant publish on cap.> "
            "and subscribe on reply.>",
        )
    return bad(
        "Somebody subscribes to every request (cap.>), so calls to nobody wait instead of failing at once.",
        fix="Find it (`nats server report connections --subscriptions`) and let it listen to records instead.",
    )


def _subject_of(denial: str) -> str:
    found = re.search(r"permissions violation for (.+)", denial, re.IGNORECASE)
    return found.group(1).strip(" '\"") if found else denial


def _places(patient: Patient) -> list[tuple[str, int]]:
    places = []
    for server in patient.known_settings.servers:
        parts = urlsplit(server)
        places.append((parts.hostname or "", parts.port or _DEFAULT_PORTS.get(parts.scheme, 4222)))
    return places


CHECKS = (
    Check("name", "Host name", name),
    Check("port", "Port", port),
    Check("nats", "NATS server", speaks_nats),
    Check("login", "Login", login),
    Check("permission", "Permission", permission),
)
