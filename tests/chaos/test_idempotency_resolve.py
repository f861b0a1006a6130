"""What operators say of lost writes, and what is done then: counted in the world outside, across killed servers.

Eighteen writes are under way when their agent is killed: without a key, with one, and inside a task (with a key by
itself); half of them were done, half were not. Each verdict is said of each kind. The file of effects is what counts.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reach.call.client import Bus
from reach.cli.outcomes import send_again
from reach.errors import ReachError
from reach.faults import Executed, Reason
from reach.wire.reply import Reply
from reach.wire.unknown import UnknownAnswer, Verdict
from tests.actors.unknowns_rig import ask
from tests.cli.terminal import platform
from tests.runtime.fleet import Fleet, eventually

LEDGER = """
import asyncio, os
import reach

agent = reach.Agent("ledger")
victim = os.environ["VICTIM"] == "yes"


def write(name: str, word: str) -> None:
    file = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, (word + "\\n").encode())
    os.close(file)


@agent.capability("ledger.post", timeout_s=20, max_concurrency=256)
async def post(name: str, folder: str, done: bool) -> str:
    if victim and not done:
        write(folder + "/begun", name)
        await asyncio.sleep(60)
    write(folder + "/effects", name)
    if victim:
        write(folder + "/begun", name)
        await asyncio.sleep(60)
    return name


agent.run()
"""
RACERS = 3


@dataclass(frozen=True)
class Write:
    """One write: its kind of key, what will be said of it, and whether it was done before its agent died."""

    kind: str
    verdict: Verdict
    done: bool

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.verdict}-{'done' if self.done else 'not'}"

    async def call(self, bus: Bus, folder: Path) -> Reply:
        """Make the call, as its caller does each time."""
        options: dict[str, Any] = {"session_id": "s-1", "timeout_s": 15.0}
        if self.kind == "keyed":
            options["idempotency_key"] = self.name
        elif self.kind == "task":
            options["task_id"] = "t-1"
        params = {"name": self.name, "folder": str(folder), "done": self.done}
        return await bus.request("ledger.post", params, **options)

    @property
    def times(self) -> int:
        """How often it is done in all, when everybody has said and repeated what they say and repeat."""
        repeated = self.verdict is Verdict.RETRY or (
            self.verdict is Verdict.NOT_EXECUTED and self.kind != "bare"
        )
        return self.done + repeated


WRITES = [
    Write(kind, verdict, done)
    for kind in ("bare", "keyed", "task")
    for verdict in Verdict
    for done in (True, False)
]


@pytest.fixture
async def fleet(own_system: Any, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A server of the test's own, with a platform; agents and callers."""
    await asyncio.to_thread(own_system.provision)
    fleet = Fleet(own_system, tmp_path)
    with platform(own_system.home, tmp_path):
        try:
            yield fleet
        finally:
            await fleet.close()


async def kill_server(fleet: Fleet) -> None:
    os.kill(fleet.system.server.info.pid, signal.SIGKILL)
    await asyncio.to_thread(fleet.system.restart)


async def lost(fleet: Fleet, bus: Bus, folder: Path) -> dict[Write, str]:
    """Begin all writes, kill their agent, and the server right after the first replies; the calls' ids."""
    victim = await fleet.program(LEDGER, name="victim", VICTIM="yes")
    calls = {write: asyncio.create_task(write.call(bus, folder)) for write in WRITES}
    begun = folder / "begun"
    await eventually(lambda: begun.exists() and len(begun.read_text().split()) == len(WRITES))
    await fleet.program(LEDGER, name="heir", VICTIM="no")
    victim.kill()
    replies = {write: await calls[write] for write in WRITES if write.kind != "keyed"}
    await kill_server(fleet)  # Not a turn of the loop after the last reply.
    for write in WRITES:
        if write.kind == "keyed":
            replies[write] = await calls[write]
            while replies[write].error.reason is not Reason.OUTCOME_UNKNOWN:  # type: ignore[union-attr]
                replies[write] = await write.call(bus, folder)  # Repeating it with its key is safe.
    assert {Reason.OUTCOME_UNKNOWN} == {reply.error and reply.error.reason for reply in replies.values()}
    return {write: str(reply.reach_id) for write, reply in replies.items()}


async def asked(fleet: Fleet, verb: str, **more: Any) -> UnknownAnswer:
    """Ask the platform, until it is back. Raises `ReachError` where it refuses."""
    while True:
        try:
            return await ask(fleet.system, verb, **more)
        except ReachError as error:
            if error.reason not in {
                Reason.NO_RESPONDERS,
                Reason.DEADLINE,
                Reason.DISCONNECTED,
                Reason.CONNECT,
            }:
                raise
            await asyncio.sleep(0.1)


async def listed(fleet: Fleet, ids: dict[Write, str]) -> None:
    """Wait until the list has all of them."""
    async with asyncio.timeout(20):
        for reach_id in ids.values():
            while True:
                try:
                    await asked(fleet, "show", id=reach_id)
                    break
                except ReachError:
                    await asyncio.sleep(0.1)


async def retried(fleet: Fleet, buses: list[Bus], reach_id: str) -> list[Reply]:
    """Two operators have it made again, at once; the one who comes second insists."""

    async def one(by: str, bus: Bus) -> Reply:
        try:
            answer = await asked(fleet, "resolve", id=reach_id, verdict="retry", by=by)
        except ReachError as error:
            if "resolved it as retry" not in error.message:
                raise
            answer = await asked(fleet, "resolve", id=reach_id, verdict="retry", by=by, again=True)
        while True:
            reply = await send_again(bus, answer.rows[0].outcome, timeout_s=15.0)
            if reply.error is None or reply.error.executed is not Executed.NO:
                return reply
            await asyncio.sleep(0.1)  # The server was killed a moment ago, and the agent is not back yet.

    return await asyncio.gather(*(one(f"op{at}", bus) for at, bus in enumerate(buses)))


async def test_what_is_resolved_is_done_as_often_as_was_said(fleet: Fleet, tmp_path: Path) -> None:
    """Executed: never again. Not executed, with a key: once by whoever repeats it. Retry: once, by two operators."""
    buses = [await fleet.connect() for _ in range(2)]
    ids = await lost(fleet, buses[0], tmp_path)
    await listed(fleet, ids)
    said = [write for write in WRITES if write.verdict is not Verdict.RETRY]
    for at, write in enumerate(said):
        result = {"result": "as the operator saw"} if write.verdict is Verdict.EXECUTED else {}
        await asked(fleet, "resolve", id=ids[write], verdict=write.verdict, **result)
        if at == len(said) // 2:
            await kill_server(fleet)
    await kill_server(fleet)
    replies = {}
    for write in WRITES:
        if write.verdict is Verdict.RETRY:
            replies[write] = await retried(fleet, buses, ids[write])
    for write in WRITES:
        if write.kind != "bare":
            racing = (write.call(buses[at % 2], tmp_path) for at in range(RACERS))
            replies[write] = [*replies.get(write, ()), *await asyncio.gather(*racing)]

    effects = Counter((tmp_path / "effects").read_text().split())
    assert {write.name: write.times for write in WRITES} == {
        write.name: effects[write.name] for write in WRITES
    }
    for write, told in replies.items():
        wanted = "as the operator saw" if write.verdict is Verdict.EXECUTED else write.name
        assert {wanted} == {reply.data for reply in told}, write
        fresh = 0 if write.verdict is Verdict.EXECUTED else 1
        assert fresh == sum(not reply.duplicate for reply in told), write
    assert 0 == (await asked(fleet, "list", capability="ledger.post")).open
