"""A process that stood still does no old work when it wakes: whatever is in its socket, kicked or not.

Requests are published to an agent that is stopped by a signal, or whose loop computes, or behind a server that is
stopped. What was then begun is read from the agent's own log of effects.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from reach.bus.connection import Connection
from reach.bus.framing import Delivery
from reach.bus.keys import Role
from reach.faults import Code, Executed, Reason
from reach.wire import codec, subjects
from reach.wire.reply import Reply
from tests.chaos.judging_rig import NEVER_OPENS, judge_by
from tests.chaos.stress_rig import NOTHING, Peer, Rig, eventually, faults_of, left_of, tell

OLD = 500

pytestmark = pytest.mark.alone


class Asked:
    """Requests published as any NATS client would, and whoever answered them. They carry no time of expiry."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.answers: dict[str, Reply] = {}
        self._inbox = f"{connection.inbox}.asked"
        self._subscription = connection.subscribe(f"{self._inbox}.*", self._take)

    def publish(self, subject: str, prefix: str, number: int, **params: Any) -> None:
        for index in range(number):
            key = f"{prefix}-{index}"
            body = json.dumps({"key": key, **params}).encode()
            self._connection.publish(subject, body, reply=f"{self._inbox}.{key}")

    def _take(self, delivery: Delivery) -> None:
        key = delivery.subject.rpartition(".")[2]
        self.answers[key] = Reply.from_map(codec.unpack(delivery.data))

    def of(self, prefix: str) -> list[Reply]:
        return [reply for key, reply in self.answers.items() if key.startswith(f"{prefix}-")]

    async def flush(self) -> None:
        await self._connection.flush()

    async def all_of(self, prefix: str, number: int) -> list[Reply]:
        await eventually(lambda: len(self.of(prefix)) == number, within_s=10.0)
        return self.of(prefix)


@asynccontextmanager
async def frozen(peer: Peer) -> AsyncIterator[None]:
    """Stop a process for a while."""
    peer.freeze()
    try:
        yield
    finally:
        peer.thaw()


class Fencer:
    """Ends connections at the server, as the platform's fencer does with an instance that has long been silent."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[str, tuple[str, int]] = {}
        connection.subscribe("$SYS.ACCOUNT.*.CONNECT", self._connected)

    @classmethod
    async def watching(cls, rig: Rig) -> "Fencer":
        """Learn of every connection that begins from now on."""
        fencer = cls(await rig.connection(Role.FENCER))
        await fencer._connection.flush()
        return fencer

    def _connected(self, delivery: Delivery) -> None:
        event = json.loads(delivery.data)
        name = event["client"].get("name", "")
        self._known[name.split(":")[2] if name.count(":") == 3 else name] = (
            event["server"]["id"],
            event["client"]["id"],
        )

    async def kick(self, instance: str) -> None:
        """End the connection of an instance."""
        server, number = self._known[instance]
        subject = f"$SYS.REQ.SERVER.{server}.KICK"
        # Asked, not told: the server does nothing where nobody waits for its answer.
        answer = await self._connection.request(subject, json.dumps({"cid": number}).encode(), timeout_s=5)
        assert "error" not in json.loads(answer), answer


def refusals(replies: list[Reply]) -> set[tuple[Code, Reason, Executed]]:
    """How they were refused; `ok` ones are none."""
    return {
        (reply.error.code, reply.error.reason, reply.error.executed)
        for reply in replies
        if reply.error is not None
    }


STALE = {(Code.CONN_REFUSED, Reason.STALE, Executed.NO)}


async def test_what_a_stopped_agent_was_sent_is_not_begun(rig: Rig) -> None:
    """Design 5, LIFE-4: 500 requests to a stopped process, continued: none begins; they are STALE, executed=no."""
    peer = await rig.agent(AGENT="frozen")
    asked = Asked(await rig.connection(Role.CALLER))
    ways = {"cap": subjects.cap("stress.write"), "inst": subjects.inst(peer.name, "stress.write")}
    for way, to in ways.items():
        asked.publish(to, f"warm-{way}", 10)
        await asked.all_of(f"warm-{way}", 10)
    async with frozen(peer):
        for way, to in ways.items():
            asked.publish(to, f"old-{way}", OLD)
        await asked.flush()
        await asyncio.sleep(0.5)
    for way, to in ways.items():
        assert STALE == refusals(await asked.all_of(f"old-{way}", OLD))
        asked.publish(to, f"new-{way}", OLD)
        await asked.all_of(f"new-{way}", OLD)
    begun = rig.effects.begun("write")
    tell(f"{sum(key.startswith('old') for key in begun)} of {2 * OLD} old requests were begun")
    assert [] == [key for key in begun if key.startswith("old")]
    assert 2 * OLD == sum(key.startswith("new") for key in begun)
    assert 1 == (await peer.status())["stalls"]


async def test_what_a_kicked_agent_was_sent_is_not_begun(rig: Rig) -> None:
    """Design 5: a kick alone does not fence, for what was sent is in the socket; the guard refuses it all the same."""
    fencer = await Fencer.watching(rig)
    peer = await rig.agent(AGENT="kicked")
    asked = Asked(await rig.connection(Role.CALLER))
    to = subjects.inst(peer.name, "stress.write")
    asked.publish(to, "warm", 10)
    await asked.all_of("warm", 10)
    async with frozen(peer):
        asked.publish(to, "old", OLD)
        await asked.flush()
        await fencer.kick(peer.name)
        await asyncio.sleep(0.5)
    await peer.back(epoch=2)
    asked.publish(to, "new", OLD)
    await asked.all_of("new", OLD)
    begun = rig.effects.begun("write")
    status = await peer.status()
    tell(
        f"{sum(key.startswith('old') for key in begun)} of {OLD} old requests were begun; "
        f"{len(asked.of('old'))} of them refused; link number {status['epoch']}"
    )
    assert [] == [key for key in begun if key.startswith("old")]
    assert OLD == sum(key.startswith("new") for key in begun)
    assert STALE >= refusals(asked.of("old"))
    assert 2 == status["epoch"]


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.chaos_long)])
async def test_what_came_while_the_loop_computed_is_not_begun(rig: Rig, times: int) -> None:
    """Design 5: a handler that computes in the loop for a second is a process that stood still."""
    peer = await rig.agent(AGENT=f"blocked{times}")
    asked = Asked(await rig.connection(Role.CALLER))
    write, block = (subjects.inst(peer.name, f"stress.{kind}") for kind in ("write", "block"))
    asked.publish(write, "warm", 10)
    await asked.all_of("warm", 10)
    for turn in range(times):
        asked.publish(block, f"block{turn}", 1, seconds=1.0)
        await eventually(lambda turn=turn: len(rig.effects.of("begin", "block")) == turn + 1)
        await asyncio.sleep(0.1)
        asked.publish(write, f"old{turn}", OLD)
        await asked.all_of(f"old{turn}", OLD)
        # The one that computes is itself not old: it was begun, and it is finished.
        assert {True} == {reply.ok for reply in await asked.all_of(f"block{turn}", 1)}
    asked.publish(write, "new", OLD)
    await asked.all_of("new", OLD)
    begun = rig.effects.begun("write")
    assert [] == [key for key in begun if key.startswith("old")]
    assert OLD == sum(key.startswith("new") for key in begun)
    assert STALE == refusals(asked.of("old0"))


async def test_standing_still_again_while_waking_begins_nothing_old(rig: Rig) -> None:
    """Design 5: stopped again and again, in the middle of waking up: each time what came meanwhile is old."""
    peer = await rig.agent(AGENT="again")
    asked = Asked(await rig.connection(Role.CALLER))
    to = subjects.inst(peer.name, "stress.write")
    asked.publish(to, "warm", 10)
    await asked.all_of("warm", 10)
    for turn in range(4):
        async with frozen(peer):
            asked.publish(to, f"old{turn}", OLD)
            await asked.flush()
            await asyncio.sleep(0.4)
        # It wakes for as long as it takes to read a part of them.
        await asyncio.sleep(0.002 * turn)
    for turn in range(4):
        await asked.all_of(f"old{turn}", OLD)
    asked.publish(to, "new", OLD)
    await asked.all_of("new", OLD)
    begun = rig.effects.begun("write")
    assert [] == [key for key in begun if key.startswith("old")]
    assert OLD == sum(key.startswith("new") for key in begun)


async def test_callers_go_elsewhere_with_what_is_stale(rig: Rig) -> None:
    """RETRY-1: stale is `executed=no`, so our own callers make the call again, a write too, and it is done once."""
    still, _ = await rig.agents(2, AGENT="stale")
    bus = await rig.bus()
    await bus.cards.instances("stress.write")
    async with frozen(still):
        calls = {
            f"w{number}": asyncio.create_task(
                bus.request("stress.write", {"key": f"w{number}"}, target="stale", timeout_s=20)
            )
            for number in range(100)
        }
        await asyncio.sleep(1.0)
    replies = {key: await call for key, call in calls.items()}
    again = sum(reply.attempt > 1 for reply in replies.values())
    begun = rig.effects.begun("write")
    tell(f"{again} of {len(calls)} calls were made again")
    assert {} == faults_of(replies)
    assert again > 20
    assert dict.fromkeys(calls, 1) == dict(begun)


async def test_what_a_stopped_server_held_too_long_is_not_begun(own_rig: Rig) -> None:
    """CALL-2: behind a server that stood still, requests outlive their callers; broker time says that they expired."""
    peer = await own_rig.agent(AGENT="behind")
    bus = await own_rig.bus()
    judge_by(bus, NEVER_OPENS)  # An agent behind a server that stands still seems to fail.
    await bus.cards.instances("stress.write")
    assert (await bus.request("stress.write", {"key": "warm"})).ok
    server = own_rig.system.server.info.pid
    os.kill(server, signal.SIGSTOP)
    try:
        calls = [
            asyncio.create_task(
                bus.request("stress.write", {"key": f"old-{number}"}, timeout_s=0.5, retry=False)
            )
            for number in range(OLD)
        ]
        replies = await asyncio.gather(*calls)
        await asyncio.sleep(0.3)
    finally:
        os.kill(server, signal.SIGCONT)
    # Everything that the server held has passed once the agent has answered what was sent after it.
    new = await asyncio.gather(*(bus.request("stress.write", {"key": f"new-{n}"}) for n in range(OLD)))
    begun = own_rig.effects.begun("write")
    assert {Reason.OUTCOME_UNKNOWN} == {reply.error.reason for reply in replies if reply.error is not None}
    assert OLD == sum(not reply.ok for reply in replies)
    assert [] == [key for key in begun if key.startswith("old")]
    assert OLD == sum(key.startswith("new") for key in begun) == sum(reply.ok for reply in new)
    assert 0 == (await peer.status())["stalls"]
    assert NOTHING == left_of(bus)


async def test_answers_that_came_in_time_count_though_their_caller_stood_still(rig: Rig) -> None:
    """Promise 1: a caller whose loop computes past its deadlines finds the answers in its socket, and takes them."""
    await rig.agent(AGENT="prompt")
    bus = await rig.bus()
    await bus.cards.instances("stress.write")
    calls = {
        f"w{number}": asyncio.create_task(
            bus.request("stress.write", {"key": f"w{number}"}, target="prompt", timeout_s=0.4)
        )
        for number in range(200)
    }
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # They are written out in the second turn of the loop.
    time.sleep(1.0)  # The mistake that is looked at.
    replies = {key: await call for key, call in calls.items()}
    assert {} == faults_of(replies)
    assert dict.fromkeys(calls, 1) == dict(rig.effects.begun("write"))
    late = await bus.request("stress.write", {"key": "slow", "seconds": 5}, timeout_s=0.2)
    assert late.error is not None
    assert NOTHING == left_of(bus)
