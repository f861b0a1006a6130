"""The server is killed and started again under load: judged at once, flowing soon, nothing done twice."""

import asyncio
import os
import signal
from collections import Counter
from itertools import count
from time import monotonic
from typing import Any

import anyio
import pytest

from reach.bus.embedded import EmbeddedServer
from reach.call.client import Bus
from reach.errors import LinkDown
from reach.wire.reply import Reply
from tests.chaos.stress_rig import NOTHING, Rig, eventually, faults_of, left_of, tell

RATE_PER_S = 300
FLOW_S = 5.0
"""What is promised: calls flow again this long after the server is back."""
AT_ONCE_S = 1.0


class Killed:
    """The server of a test, which dies and comes back on the same port."""

    def __init__(self, system: Any) -> None:
        self.system = system
        self.port = system.server.info.port

    def kill(self) -> float:
        at = monotonic()
        os.kill(self.system.server.info.pid, signal.SIGKILL)
        return at

    async def start(self) -> float:
        await anyio.to_thread.run_sync(self.system.server.stop)  # Its watchdog has ended with it.
        self.system.server = await anyio.to_thread.run_sync(
            lambda: EmbeddedServer.start(self.system.home, port=self.port)
        )
        return monotonic()


class Load:
    """Calls at a steady rate, half of them writes, each 0.5 s of work; when each began, when it ended, and how."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.calls: dict[str, tuple[float, float, Reply]] = {}
        self.over = False
        self._numbers = count()

    @property
    def replies(self) -> dict[str, Reply]:
        return {key: reply for key, (_, _, reply) in self.calls.items()}

    async def run(self) -> None:
        next_at = monotonic()
        async with asyncio.TaskGroup() as group:
            while not self.over:
                for _ in range(RATE_PER_S // 50):
                    group.create_task(self._one(next(self._numbers)))
                next_at += 0.02
                await asyncio.sleep(max(0.0, next_at - monotonic()))

    async def _one(self, number: int) -> None:
        kind = "write" if number % 2 else "read"
        key = f"{kind}-{number}"
        began = monotonic()
        reply = await self.bus.request(f"stress.{kind}", {"key": key, "seconds": 0.5}, timeout_s=30)
        self.calls[key] = (began, monotonic(), reply)


async def kill_the_server(rig: Rig, *, times: int, away_s: float) -> None:
    """Kill and start the server so many times, and account for every call."""
    # Room for all who waited: how many at once is another promise.
    peers = await rig.agents(3, LIMIT="8192")
    bus = await rig.bus()
    await bus.cards.instances("stress.write")
    server = Killed(rig.system)
    load = Load(bus)
    running = asyncio.create_task(load.run())
    killed: list[float] = []
    started: list[float] = []
    for _ in range(times):
        await asyncio.sleep(1.0)
        killed.append(server.kill())
        await asyncio.sleep(away_s)
        started.append(await server.start())
        await eventually(lambda: bus.connection.connected, within_s=FLOW_S)
        await asyncio.sleep(2.5)
    load.over = True
    await running

    begun = rig.effects.begun("write")
    ends = [*killed[1:], monotonic()]
    for kill, start, end in zip(killed, started, ends, strict=True):
        hit = {key: call for key, call in load.calls.items() if call[0] < kill - 0.05 and call[1] > kill}
        unknown = {key: call for key, call in hit.items() if call[2].error is not None}
        judged_s = max(ended for _, ended, _ in unknown.values()) - kill
        flowing = [ended for began, ended, reply in load.calls.values() if reply.ok and ended > start]
        # From then on every call that is made is answered as if nothing had been.
        slow = [
            began for began, ended, _ in load.calls.values() if start < began < ended - 1.5 and ended < end
        ]
        steady_s = max(slow, default=start)
        tell(
            f"{len(hit)} in flight, {len(unknown)} writes judged within {judged_s:.2f} s; the first result "
            f"{min(flowing) - start:.2f} s after the server was back, no call slow after {steady_s - start:.2f} s"
        )
        assert len(hit) > 50
        assert all(key.startswith("write") for key in unknown), faults_of(
            {k: c[2] for k, c in unknown.items()}
        )
        assert judged_s < AT_ONCE_S
        assert min(flowing) - start < FLOW_S
        assert steady_s - start < FLOW_S
    failed = {key: reply for key, reply in load.replies.items() if not reply.ok}
    assert {("OUTCOME_UNKNOWN", "DISCONNECTED")} == {
        (error.reason.value, error.cause) for reply in failed.values() if (error := reply.error) is not None
    }, faults_of(failed)
    # What is unknown was under way when a link ended; what was made while there was none has its result.
    assert all(any(load.calls[key][0] < kill + 0.25 for kill in killed) for key in failed)
    assert Counter({1: len(begun)}) == Counter(begun.values())
    assert begun.keys() >= {key for key in load.calls if key.startswith("write")} - failed.keys()
    assert NOTHING == left_of(bus)
    for peer in peers:
        status = await peer.status()
        assert (0, 0, 0, 0) == tuple(status[what] for what in ("running", "inflight", "by_message", "faults"))
    assert {peer.name for peer in peers} == {
        reply.instance for began, _, reply in load.calls.values() if began > started[-1] + 1.5 and reply.ok
    } or times > 1


@pytest.mark.alone
async def test_a_killed_server_under_load(own_rig: Rig) -> None:
    """CALL-6, case 5: kill -9 of the server, back after half a second: judged at once, flow in < 5 s, nothing twice."""
    await kill_the_server(own_rig, times=1, away_s=0.5)


@pytest.mark.chaos_long
@pytest.mark.parametrize("away_s", [0.0, 0.5, 3.0, 10.0])
async def test_a_server_that_is_killed_again_and_again(own_rig: Rig, away_s: float) -> None:
    """The same five times in a row, with pauses of all lengths."""
    await kill_the_server(own_rig, times=5, away_s=away_s)


async def test_what_is_published_right_after_a_reconnect_is_heard_or_told(own_rig: Rig) -> None:
    """Case 4: the first event and the first call over a new link: handled, or counted as unheard; answered."""
    await own_rig.agent()
    bus = await own_rig.bus()
    await bus.cards.instances("stress.write")
    server = Killed(own_rig.system)
    told = 0
    for turn in range(3):
        server.kill()
        await eventually(lambda: not bus.connection.connected)
        with pytest.raises(LinkDown):
            bus.connection.publish("cap.stress.write", b"{}")
        event = asyncio.create_task(bus.publish("stress.write", {"key": f"event-{turn}"}, timeout_s=10))
        call = asyncio.create_task(bus.request("stress.write", {"key": f"call-{turn}"}, timeout_s=10))
        await server.start()
        await event
        told += 1
        assert (await call).ok
        await eventually(lambda: left_of(bus) == NOTHING, within_s=3.0)
    begun = own_rig.effects.begun("write")
    heard = sum(key.startswith("event") for key in begun)
    tell(f"of {told} events {heard} were heard, {bus.unheard} told to be unheard")
    assert told == heard + bus.unheard
    assert {1} == set(begun.values())
