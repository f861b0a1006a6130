"""The part of the way that lies on this machine: versions, the state folder, the address, the key."""

from __future__ import annotations

import platform
import shutil
import sys
from importlib import metadata

from reach.bus.addresses import parse_servers
from reach.bus.embedded import MIN_FREE_BYTES
from reach.bus.internals import SUPPORTED_NATS_PY
from reach.bus.keys import Role
from reach.bus.settings import resolve
from reach.bus.state import StateFolder
from reach.cli.checks.finding import Check, Finding, Patient, bad, good, told
from reach.errors import ConfigError

_PYTHON = (3, 11)


async def versions(_patient: Patient) -> Finding:
    """Python, and the one version of nats-py whose insides we know."""
    if sys.version_info < _PYTHON:
        return bad(f"Python {platform.python_version()}", fix="Use Python 3.11 or newer.")
    found = metadata.version("nats-py")
    if found != SUPPORTED_NATS_PY:
        return bad(
            f"nats-py is {found}, and this version of Reach works with {SUPPORTED_NATS_PY}.",
            fix=f"pip install nats-py=={SUPPORTED_NATS_PY}",
        )
    ours = metadata.version("agent-reach")
    return good(f"agent-reach {ours}, nats-py {found}, Python {platform.python_version()}")


async def folder(patient: Patient) -> Finding:
    """The state folder can be believed, and has room."""
    place = StateFolder.locate(patient.env)
    if not patient.is_local:
        return good("not needed: the address is given")
    if not place.path.exists():
        return good(f"{place.path} is not there yet; `reach up` makes it")
    try:
        place.check()
    except ConfigError as error:
        return told(str(error))
    free = shutil.disk_usage(place.path).free
    if free < MIN_FREE_BYTES:
        return bad(
            f"The disk of {place.path} is full: {free // 2**20} MiB are free.",
            fix=f"Make room ({MIN_FREE_BYTES // 2**20} MiB), or set REACH_HOME to a folder on another disk.",
        )
    return good(str(place.path))


async def address(patient: Patient) -> Finding:
    """There is a place to connect to: an address that is one, or a local server that runs."""
    try:
        if patient.is_local:
            return _local(StateFolder.locate(patient.env))
        if given := patient.url or patient.env.get("REACH_URL"):
            source = "--url" if patient.url else "REACH_URL"
            servers, _ = parse_servers(given, source=source)
            return good(f"{', '.join(servers)} (from {source})")
    except ConfigError as error:
        return told(str(error))
    return good(f"context {patient.env['REACH_CONTEXT']} of the nats tool")


def _local(place: StateFolder) -> Finding:
    info = place.read_server() if place.path.exists() else None
    cure = "Start one: reach up. Or use one that runs: export REACH_URL=nats://host:4222"
    if info is None:
        return bad("No NATS server runs here, and REACH_URL is not set.", fix=cure)
    if not info.is_alive:
        return bad(f"The server of `reach up` ({info.url}, pid {info.pid}) is gone.", fix=cure)
    return good(f"{info.url} (started by `reach up`)")


async def key(patient: Patient) -> Finding:
    """There is a way to log in that may be used."""
    try:
        patient.settings = resolve(patient.url, role=Role.OPERATOR, env=patient.env)
    except ConfigError as error:
        return _key_fault(error)
    login = patient.settings.credentials
    return good(
        "none (the server may not want any)" if login.kind == "none" else f"{login.kind}: {login.source}"
    )


def _key_fault(error: ConfigError) -> Finding:
    finding = told(str(error))
    if "does not exist" not in finding.found:
        return finding
    if finding.found.lower().startswith(("key of role", "folder of keys")):
        return bad(
            finding.found, fix="Stop `reach up` and start it again: it makes the keys that are missing."
        )
    variable = finding.found.partition(":")[0]
    return bad(finding.found, fix=f"Correct {variable}, or unset it where the key of `reach up` will do.")


CHECKS = (
    Check("versions", "Versions", versions),
    Check("folder", "State folder", folder),
    Check("address", "Address", address),
    Check("key", "Key", key),
)
