"""How commands speak with the supervisor, and what they read where none answers.

A command is one request on `reach.route.<verb>`. "Nobody leads" comes back at once and means that nothing was done,
so it is asked again for as long as the election of a new leader may take; no answer at all means that it may have
been done. The routing table is read from its bucket: it is there whether anybody leads or not, and the leader's
key beside it, which ends two seconds after its owner, says which of the two.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from reach import ids
from reach.cli import output
from reach.cli.exits import Exit, Refusal
from reach.errors import CallTimeout, ReachError, SchemaInvalid, Unreachable
from reach.wire import codec, subjects
from reach.wire.registration import (
    LEADER_KEY,
    ROUTES,
    InstanceRow,
    ListInstances,
    RouteAnswer,
    RouteCommand,
    RouteVerb,
    capability_of_key,
    read_answer,
    read_message,
)
from reach.wire.route import RouteEntry

if TYPE_CHECKING:
    from reach.bus.connection import Connection
    from reach.bus.framing import Delivery

ELECTION_S: Final = 4.5
"""How long a command waits for somebody who leads: a killed leader is replaced in 4 s (LIFE-8)."""

ANSWER_S: Final = 5.0
"""How long a leader may take to answer; it takes milliseconds."""

NOBODY_LEADS: Final = "No supervisor answers"
START_ONE: Final = "The platform has it: reach up. If that runs, `reach doctor` finds out what is wrong."

_LOOK_S: Final = 2.0
"""How long whoever only looks waits: without a supervisor there is still something to show."""

_AGAIN_S: Final = 0.2
_BATCH: Final = 1000
_PREFIX: Final = f"$KV.{ROUTES}."


def operator() -> str:
    """Give the name under which a change is audited where none was given: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # A container without an entry for its user.
        user = "operator"
    return f"{user}@{socket.gethostname()}"


async def order(connection: Connection, verb: RouteVerb, command: RouteCommand) -> RouteAnswer:
    """Have the supervisor do something, or say what it would do.

    Raises:
        Refusal: it refuses, and says why (1); nobody leads, so nothing was done (6); no answer came, so it may
            have been done (5).
        LinkDown: the connection to NATS ended.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ELECTION_S
    told = False
    while True:
        try:
            return await _ask(connection, verb, command)
        except Unreachable:
            if loop.time() >= deadline:
                raise Refusal(Exit.LATER, f"{NOBODY_LEADS}: nothing was done.", fix=START_ONE) from None
        except CallTimeout:
            raise _unanswered(verb, command) from None
        except ReachError as error:
            raise Refusal(Exit.FAILED, output.sentence(error.message)) from None
        if not told:
            output.say(f"{NOBODY_LEADS}. Waiting for one for {ELECTION_S:g} s …", style="dim")
            told = True
        await asyncio.sleep(_AGAIN_S)


def _unanswered(verb: RouteVerb, command: RouteCommand) -> Refusal:
    if command.dry_run or verb in {RouteVerb.EXPLAIN, RouteVerb.SHOW, RouteVerb.INSTANCES}:
        return Refusal(Exit.LATER, f"The supervisor did not answer within {ANSWER_S:g} s.", fix=START_ONE)
    return Refusal(
        Exit.UNSURE,
        f"The supervisor did not answer within {ANSWER_S:g} s: it may have been done.",
        fix="See what holds: reach route show",
    )


async def instances(
    connection: Connection, *, capability: str | None = None, agent_id: str | None = None
) -> list[InstanceRow] | None:
    """Give the instances as the supervisor sees them; None when nobody leads. Raises `LinkDown`, `Refusal`."""
    found: list[InstanceRow] = []
    while True:
        after = found[-1].instance if found else ""
        asked = ListInstances(by=operator(), capability=capability, agent_id=agent_id, after=after)
        try:
            page = await _ask(connection, RouteVerb.INSTANCES, asked, timeout_s=_LOOK_S)
        except (Unreachable, CallTimeout):
            return None
        except ReachError as error:
            raise Refusal(Exit.FAILED, output.sentence(error.message)) from None
        found += page.instances
        if not page.more or not page.instances:
            return found


async def _ask(
    connection: Connection, verb: RouteVerb, command: RouteCommand, *, timeout_s: float = ANSWER_S
) -> RouteAnswer:
    data = codec.pack(command.model_dump(mode="json"))
    return read_answer(await connection.request(subjects.route(verb), data, timeout_s=timeout_s), RouteAnswer)


# ------------------------------------------------------------------------------------------------ the table


@dataclass(slots=True)
class Table:
    """The routing table. `led` says that a supervisor keeps it; else it is as the last one left it."""

    led: bool = False
    entries: dict[str, RouteEntry] = field(default_factory=dict)


async def read_table(connection: Connection) -> Table:
    """Read the whole table from its bucket; an empty one where it cannot be read. Raises `LinkDown`."""
    table = Table()
    reading = _Reading(table)
    inbox = f"{connection.inbox}.{ids.new_id()}.1"
    subscription = connection.subscribe(inbox, reading.take, durable=False)
    try:
        while not reading.whole:
            reading.ended.clear()
            asked = {"seq": reading.next, "batch": _BATCH, "next_by_subj": f"{_PREFIX}>"}
            connection.publish(f"$JS.API.DIRECT.GET.KV_{ROUTES}", json.dumps(asked).encode(), reply=inbox)
            async with asyncio.timeout(ANSWER_S):
                await reading.ended.wait()
    except TimeoutError:
        return Table()  # A cluster without a quorum, or no right to look: what there is must do.
    finally:
        subscription.drop()
    return table


class _Reading:
    """Takes the answers of direct gets in batches, each with the number of what is left at its end."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.next = 1
        self.whole = False
        self.ended = asyncio.Event()

    def take(self, delivery: Delivery) -> None:
        headers = delivery.headers or {}
        status = headers.get("Status")
        if status is not None:  # 204 is the end of a batch; 404 and 503 that there is nothing (any more).
            self.whole = status != "204" or headers.get("Nats-Num-Pending", "0") == "0"
            self.ended.set()
            return
        self.next = int(headers.get("Nats-Sequence", "0")) + 1
        key = headers.get("Nats-Subject", "").removeprefix(_PREFIX)
        is_there = "KV-Operation" not in headers and "Nats-Marker-Reason" not in headers
        if key == LEADER_KEY:
            self._table.led = is_there
        elif is_there and (capability := capability_of_key(key)) is not None:
            try:
                self._table.entries[capability] = read_message(codec.unpack(delivery.data), RouteEntry)
            except SchemaInvalid:
                return  # Of another version: what cannot be read is not shown.
