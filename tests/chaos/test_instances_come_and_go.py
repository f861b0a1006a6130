"""Instances that are restarted, and instances that die, under real load, as programs of their own (LIFE-7, case 9)."""

import asyncio
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import reach
from reach.runtime.platform import READY, platform_command
from reach.wire.reply import Reply
from tests.chaos.stress_rig import patient
from tests.runtime.fleet import Fleet, Program, eventually

SENTINEL = "actors.sentinel.actor:Sentinel"
"""Named, so that a checkout that was not installed, and so has no entry points, passes too."""

AGENT = '''
"""A read, a write and a long one; each start of a handler is a line in a file, written before anything else."""

import asyncio, os, sys
import reach

agent = reach.Agent("shop")
log = open(os.environ["EFFECTS"], "a", buffering=1)


async def work(kind: str, key: str, seconds: float) -> str:
    log.write(f"{kind} {key} {os.getpid()}\\n")
    await asyncio.sleep(seconds)
    return key


@agent.capability("shop.read", idempotent=True, max_concurrency=512)
async def read(key: str, seconds: float = 0.01) -> str:
    return await work("read", key, seconds)


@agent.capability("shop.write", max_concurrency=512)
async def write(key: str, seconds: float = 0.01) -> str:
    return await work("write", key, seconds)


agent.run()
'''


class Shop:
    """Three instances of one agent, each a program, and the log of what their handlers began."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet = fleet
        self.effects = folder / "effects.log"
        self.effects.touch()
        self.programs: list[Program] = []

    async def open(self, number: int = 3) -> None:
        started = [self.start() for _ in range(number)]
        for program in started:
            await program.ready()

    def start(self) -> Program:
        program = self.fleet.start(AGENT, name=f"shop{len(self.programs)}", EFFECTS=str(self.effects))
        self.programs.append(program)
        return program

    def begun(self) -> Counter[tuple[str, str]]:
        """How often each call was begun, by kind and key."""
        lines = [line.split() for line in self.effects.read_text().splitlines()]
        return Counter((kind, key) for kind, key, _ in lines)


@pytest.fixture
def shop(fleet: Fleet, tmp_path: Path) -> Shop:
    """Not open yet."""
    return Shop(fleet, tmp_path)


@pytest.fixture
async def platform(system: Any) -> AsyncIterator[subprocess.Popen[str]]:
    """The platform process, with the sentinel in it."""
    process = subprocess.Popen(
        platform_command(system.home, actors=[SENTINEL], watch_stdin=True),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=system.env,
        text=True,
    )
    assert process.stdout is not None
    line = await asyncio.to_thread(process.stdout.readline)
    assert line.startswith(READY), line
    yield process
    process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(process.wait, 10)
    process.stdout.close()
    if process.stdin is not None:
        process.stdin.close()


class Load:
    """Calls at a steady rate, half of them writes, until it is stopped."""

    def __init__(self, bus: reach.Bus, *, rate_per_s: int) -> None:
        self.bus = bus
        self.pause_s = 0.02
        self.batch = round(rate_per_s * self.pause_s)
        self.replies: dict[str, Reply] = {}
        self.over = asyncio.Event()

    async def run(self) -> None:
        number = 0
        next_at = monotonic()
        async with asyncio.TaskGroup() as group:
            while not self.over.is_set():
                for _ in range(self.batch):
                    number += 1
                    group.create_task(self.one(number))
                next_at += self.pause_s
                await asyncio.sleep(max(0.0, next_at - monotonic()))

    async def one(self, number: int) -> None:
        kind = "write" if number % 2 else "read"
        key = f"{kind}-{number}"
        self.replies[key] = await self.bus.request(f"shop.{kind}", {"key": key}, timeout_s=10)


def failures(replies: dict[str, Reply]) -> dict[str, str]:
    return {
        key: f"{error.code}/{error.reason} {error.executed} {error.cause} after {reply.latency_ms:.0f} ms"
        for key, reply in replies.items()
        if (error := reply.error) is not None
    }


@pytest.mark.alone
async def test_a_rolling_restart_under_load_loses_no_call(
    fleet: Fleet, shop: Shop, platform: subprocess.Popen[str]
) -> None:
    """LIFE-7, case 9: 500 calls a second, each of three instances stopped and replaced: no failure, nothing twice."""
    await shop.open()
    bus = patient(await fleet.connect())
    await bus.cards.instances("shop.read")
    load = Load(bus, rate_per_s=500)
    running = asyncio.create_task(load.run())
    await asyncio.sleep(0.3)
    for old in shop.programs[:3]:
        new = shop.start()
        await new.ready()
        old.terminate()
        assert 0 == await old.ended()
        await asyncio.sleep(0.1)
    load.over.set()
    await running
    assert {} == failures(load.replies)
    assert len(load.replies) > 500
    begun = shop.begun()
    assert {key for kind, key in begun if kind == "write"} == {
        key for key in load.replies if key.startswith("write")
    }
    assert {1} == {times for (kind, _), times in begun.items() if kind == "write"}
    assert len({reply.instance for reply in load.replies.values()}) >= 4
    assert len(load.replies) == len(fleet.records)


async def test_a_restart_beside_a_sentinel_loses_no_call_either(
    fleet: Fleet, shop: Shop, platform: subprocess.Popen[str]
) -> None:
    """LIFE-7: an instance that left in order is not taken for a dead one, with calls running longer than its pause."""
    await shop.open(2)
    bus = patient(await fleet.connect())
    await bus.cards.instances("shop.write")
    calls = {
        f"long-{n}": asyncio.create_task(
            bus.request("shop.write", {"key": f"long-{n}", "seconds": 1.6}, timeout_s=20)
        )
        for n in range(40)
    }
    await eventually(lambda: len(shop.begun()) == 40)
    shop.programs[0].terminate()
    replies = {key: await call for key, call in calls.items()}
    assert {} == failures(replies)
    assert 0 == await shop.programs[0].ended()


@pytest.mark.alone
async def test_calls_of_a_killed_instance_end_at_once(
    fleet: Fleet, shop: Shop, platform: subprocess.Popen[str]
) -> None:
    """LIFE-4, RETRY-1, RETRY-2, case 8: kill -9: reads are made elsewhere, writes are unknown, none waits."""
    await shop.open()
    bus = patient(await fleet.connect())
    await bus.cards.instances("shop.read")
    calls: dict[str, asyncio.Task[Reply]] = {}
    for number in range(60):
        kind = "write" if number % 2 else "read"
        key = f"{kind}-{number}"
        calls[key] = asyncio.create_task(
            bus.request(f"shop.{kind}", {"key": key, "seconds": 2.0}, timeout_s=60)
        )
    await eventually(lambda: len(shop.begun()) == 60)
    victim = shop.programs[0]
    on_victim = {
        line.split()[1] for line in shop.effects.read_text().splitlines() if line.endswith(f" {victim.pid}")
    }
    dead = victim.instances[0]
    ended: dict[str, float] = {}

    def note(key: str, _: object) -> None:
        ended[key] = monotonic()

    for key, call in calls.items():
        call.add_done_callback(partial(note, key))
    await asyncio.sleep(0.1)
    killed = monotonic()
    victim.kill()
    replies = {key: await call for key, call in calls.items()}

    writes = {key for key in on_victim if key.startswith("write")}
    reads = on_victim - writes
    assert writes
    assert reads
    assert {("UNKNOWN", "OUTCOME_UNKNOWN", "maybe", "INSTANCE_GONE", dead)} == {
        (error.code.value, error.reason.value, error.executed.value, error.cause, replies[key].instance)
        for key in writes
        if (error := replies[key].error) is not None
    }
    assert writes == failures(replies).keys()
    assert max(ended[key] for key in writes) - killed < 1.5
    assert {2} == {replies[key].attempt for key in reads}
    assert dead not in {replies[key].instance for key in reads}
    assert max(ended.values()) - killed < 1.5 + 2.0 + 1.0
    begun = shop.begun()
    assert {1} == {begun["write", key] for key in calls if key.startswith("write")}
    assert {2} == {begun["read", key] for key in reads}
    assert 60 == len(fleet.records)


@pytest.mark.chaos_long
async def test_many_rolling_restarts_lose_no_call(
    fleet: Fleet, shop: Shop, platform: subprocess.Popen[str]
) -> None:
    """LIFE-7: ten rounds of replacing all three instances at 500 calls a second."""
    await shop.open()
    bus = patient(await fleet.connect())
    await bus.cards.instances("shop.read")
    load = Load(bus, rate_per_s=500)
    running = asyncio.create_task(load.run())
    for _ in range(10):
        for old in shop.programs[-3:]:
            new = shop.start()
            await new.ready()
            old.terminate()
            assert 0 == await old.ended()
    load.over.set()
    await running
    assert {} == failures(load.replies)
    begun = shop.begun()
    assert {1} == {times for (kind, _), times in begun.items() if kind == "write"}
