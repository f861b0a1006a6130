"""The part of the way behind the door: JetStream, the stores, and the platform process that looks after them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from typing import Any

from reach import ids
from reach.bus.connection import Connection
from reach.bus.keys import Role
from reach.bus.permissions import BLOB_BUCKETS, READ_BUCKETS
from reach.bus.state import StateFolder
from reach.cli.checks.finding import Check, Finding, Patient, State, bad, good
from reach.errors import CallTimeout, ConfigError, LinkDown, ReachError, Unreachable
from reach.wire import subjects

_TIMEOUT_S = 2.0
_GONE_S = 3.0
"""The sentinel waits half a second for a connection to come back; the rest is for a machine that is busy."""

_LOG_BYTES = 256 * 1024
"""How much of the end of the server's log is looked through."""

_GIVEN_UP = re.compile(r"JetStream stream '\S+ > (\S+)' critical write error")

_START = "Run the platform beside that server: reach up --url nats://host:4222"


async def jetstream(patient: Patient) -> Finding:
    """JetStream is on, and our account may use it."""
    answer = await _ask(patient, "$JS.API.INFO")
    if answer is None:
        return bad(
            "JetStream is off on that server, so large payloads and tasks cannot be kept.",
            fix="Start it with JetStream (nats-server -js), or use the server that comes with Reach: reach up",
        )
    if error := answer.get("error"):
        return bad(
            f"This account may not use JetStream: {error.get('description', 'refused')}.",
            fix="Allow it in the server's configuration: accounts { REACH { jetstream: enabled } }",
        )
    return good(f"on, {answer.get('streams', 0)} streams")


async def stores(patient: Patient) -> Finding:
    """The buckets that the platform makes are there."""
    wanted = [*(f"OBJ_{bucket}" for bucket in BLOB_BUCKETS), *(f"KV_{bucket}" for bucket in READ_BUCKETS)]
    answer = await _ask(patient, "$JS.API.STREAM.NAMES") or {}
    missing = [stream for stream in wanted if stream not in (answer.get("streams") or ())]
    if missing:
        names = ", ".join(stream.partition("_")[2] for stream in missing)
        return bad(f"Stores are missing: {names}. The platform makes them, and has not run here.", fix=_START)
    if patient.is_local and (broken := _broken_stores(StateFolder.locate(patient.env))):
        return bad(
            f"NATS could not write to its disk, and has given these stores up: {', '.join(broken)}.",
            fix="Make room, then stop `reach up` and start it again: nothing else takes them up again.",
        )
    return good(f"{len(wanted)} stores")


def _broken_stores(place: StateFolder) -> list[str]:
    """Name the streams that the server has refused to write to since it started; only its log tells of them."""
    try:
        with place.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_BYTES))
            lines = log.read().decode("utf-8", "replace").rpartition("Server is ready")[2].splitlines()
    except OSError:
        return []  # What cannot be read is another check's to tell.
    given_up = {match[1] for line in lines if (match := _GIVEN_UP.search(line))}
    return sorted(stream.partition("_")[2] or stream for stream in given_up)


async def sentinel(patient: Patient) -> Finding:
    """The platform process does its work: it tells of an agent whose connection ended (ours, made for this)."""
    name = ids.instance_id("reach-doctor")
    told = asyncio.Event()
    watching = patient.link.subscribe(subjects.gone(name, "*"), lambda _: told.set())
    try:
        await patient.link.flush()
        # For a moment there is an agent of this name, which serves nothing, and then there is not.
        agent = await Connection.open(patient.known_settings, role=Role.AGENT.value, who=name)
        await agent.close()
        began = time.monotonic()
        async with asyncio.timeout(_GONE_S):
            await told.wait()
    except TimeoutError:
        return _unheard(patient)
    except (ConfigError, ReachError, LinkDown) as error:
        return bad(f"The connection did not hold: {error}", fix="Look at the log of the server.")
    finally:
        watching.drop()
    return good(f"it noticed a test agent's end within {1000 * (time.monotonic() - began):.0f} ms")


def _unheard(patient: Patient) -> Finding:
    found = (
        f"The platform does not run there: nobody told, within {_GONE_S:g} s, that a test agent had ended."
    )
    if patient.is_local:
        return bad(
            found, fix="Stop `reach up` (Ctrl-C) and start it again; what it prints says why it ended."
        )
    return Finding(
        State.WARNING,
        f"{found} Calls work; crashed agents are noticed late.",
        fix=f"{_START}. On a NATS of your own it also needs a login to the system account (REACH_FENCER_NKEY).",
    )


async def _ask(patient: Patient, subject: str) -> dict[str, Any] | None:
    try:
        answer = json.loads(await patient.link.request(subject, b"", timeout_s=_TIMEOUT_S))
    except (Unreachable, CallTimeout, LinkDown):
        return None
    return answer if isinstance(answer, dict) else None


CHECKS = (
    Check("jetstream", "JetStream", jetstream),
    Check("stores", "Stores", stores),
    Check("platform", "Platform", sentinel),
)
