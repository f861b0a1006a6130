"""SPEED-4: many instances. What they cost the supervisor, how quickly it answers, and how it recovers."""

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from reach.bus.framing import Delivery
from reach.bus.keys import Role
from reach.wire import codec, subjects
from reach.wire.card import Card
from reach.wire.life import Heartbeat
from reach.wire.registration import ROUTES, Register, RouteVerb, route_key
from tests.chaos.supervisor_rig import Platform, SupervisorRig, card, opened, tell

AGENTS = 20
"""Half of them serve the same capability."""

WINDOW = 300
"""Registrations under way at once."""


@pytest.fixture
async def rig(own_system: Any, tmp_path: Path) -> AsyncIterator[SupervisorRig]:
    """A server with its buckets, and nobody on it yet."""
    async with opened(own_system, tmp_path) as rig:
        yield rig


def member(number: int) -> Card:
    agent = number % AGENTS
    return card(number, agent_id=f"a{agent}", capability="job.do" if agent % 2 else f"job.of{agent}")


def cpu_s(platform: Platform) -> float:
    """Give the processor time that a process has used."""
    fields = Path(f"/proc/{platform.process.pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))


class Crowd:
    """Instances that are nothing but their messages."""

    def __init__(self, rig: SupervisorRig, count: int) -> None:
        self.rig = rig
        self.cards = [member(number) for number in range(count)]
        self.answers: dict[int, dict[str, Any]] = {}

    async def register(self) -> float:
        """Register everybody, some hundred at a time; how long that took."""
        agent = await self.rig.connection(Role.AGENT)
        inbox = f"{agent.inbox}.crowd"
        due = deque(range(len(self.cards)))
        sent = 0

        def take(delivery: Delivery) -> None:
            nonlocal sent
            number = int(delivery.subject.rpartition(".")[2])
            if delivery.data:
                self.answers[number] = codec.unpack(delivery.data)
            else:  # Nobody led at that moment.
                sent -= 1
                due.append(number)

        subscription = agent.subscribe(f"{inbox}.*", take)
        began = time.monotonic()
        async with asyncio.timeout(60):
            while len(self.answers) < len(self.cards):
                while due and sent - len(self.answers) < WINDOW:
                    number = due.popleft()
                    message = Register(card=self.cards[number]).model_dump(mode="json", exclude_defaults=True)
                    agent.publish(subjects.REGISTER, codec.pack(message), reply=f"{inbox}.{number}")
                    sent += 1
                await asyncio.sleep(0.002)
        subscription.drop()
        return time.monotonic() - began

    async def beat_for(self, seconds: float, *, each_s: float) -> list[float]:
        """Send everybody's heartbeats; gives how long commands took meanwhile, in milliseconds."""
        agent = await self.rig.connection(Role.AGENT)
        beats = []
        for number, one in enumerate(self.cards):
            said = {key: self.answers[number][key] for key in ("term", "revision", "tickets")}
            beat = Heartbeat(
                agent_id=one.agent_id, instance=one.instance, generation=one.generation, at=1, **said
            )
            beats.append((subjects.heartbeat(one.instance), codec.pack(beat.model_dump())))
        took, sent = [], 0
        began = asked = time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            due = int((now - began) / each_s * len(beats))
            while sent < due:
                agent.publish(*beats[sent % len(beats)])
                sent += 1
            if now - asked >= 1:
                asked = now
                await self.rig.command(RouteVerb.INSTANCES, limit=1)
                took.append((time.monotonic() - now) * 1000)
            await asyncio.sleep(0.01)
        return took


async def test_a_thousand_instances_are_looked_after(rig: SupervisorRig) -> None:
    """SPEED-4, in small: a thousand register, cost little, and are all there after a restart."""
    platform = await rig.platform()
    await rig.led()
    crowd = Crowd(rig, 1000)
    registered_s = await crowd.register()
    assert {"welcome"} == {answer["status"] for answer in crowd.answers.values()}
    entry = await rig.entry("job.do")
    assert entry is not None
    before = cpu_s(platform)
    took_ms = await crowd.beat_for(3, each_s=10)
    share = (cpu_s(platform) - before) / 3
    tell(
        f"1 000 registered in {registered_s:.1f} s; {share:.1%} of a core; commands {max(took_ms):.0f} ms at most"
    )
    await platform.end()
    await rig.platform()
    back_s = await rig.led()
    answer = await rig.command(RouteVerb.INSTANCES, limit=2000)
    tell(f"a new platform answers {back_s:.2f} s after its start, and knows {len(answer.instances)}")
    assert 1000 == len(answer.instances)


@pytest.mark.alone
async def test_a_change_is_seen_by_watchers_in_a_quarter_of_a_second(rig: SupervisorRig) -> None:
    """SPEED-4: from an operator's command to the new entry at a subscriber of the table, a hundred times.

    Before that two hundred register at a hundred a second or more.
    """
    await rig.platform()
    await rig.led()
    assert await Crowd(rig, 200).register() < 2
    watcher = await rig.connection(Role.PLATFORM)
    heard: asyncio.Queue[float] = asyncio.Queue()
    subject = f"$KV.{ROUTES}.{route_key('job.do')}"
    watcher.subscribe(subject, lambda _: heard.put_nowait(time.monotonic()))
    await watcher.flush()
    took_ms = []
    for number in range(100):
        while not heard.empty():
            heard.get_nowait()
        began = time.monotonic()
        await rig.command(RouteVerb.SET, capability="job.do", weights={"a1": 0.5 + number / 1000})
        async with asyncio.timeout(2):
            took_ms.append((await heard.get() - began) * 1000)
    took_ms.sort()
    tell(f"seen after {took_ms[50]:.0f} ms (median), {took_ms[98]:.0f} ms (P99)")
    assert took_ms[98] < 250


@pytest.mark.chaos_long
async def test_ten_thousand_instances_cost_a_tenth_of_a_core(rig: SupervisorRig) -> None:
    """SPEED-4: 10 000 instances at 10 s heartbeats under 10 % of one core; recovery within seconds."""
    platform = await rig.platform()
    await rig.led()
    crowd = Crowd(rig, 10_000)
    registered_s = await crowd.register()
    await asyncio.sleep(2)
    before, began = cpu_s(platform), time.monotonic()
    took_ms = await crowd.beat_for(30, each_s=10)
    share = (cpu_s(platform) - before) / (time.monotonic() - began)
    tell(
        f"10 000 registered in {registered_s:.1f} s; {share:.1%} of a core; commands {max(took_ms):.0f} ms at most"
    )
    await platform.end()
    await rig.platform()
    back_s = await rig.led()
    tell(f"a new platform answers {back_s:.2f} s after its start")
    assert share < 0.10
    assert back_s <= 2
