"""What the judging tests stand on: an agent, a layer and a bus that a program serves as it is told, by a file.

The programs read how they are to behave from a file that the test writes: no request carries its own failure.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from reach.call.client import Bus
from reach.policy.breaker_settings import BreakerSettings
from reach.wire.reply import Reply
from tests.runtime.fleet import Fleet, Program


def tell(text: str) -> None:
    """Print a measured number; `pytest -s` or a failure shows it."""
    print(f"  ▸ {text}", flush=True)  # noqa: T201 - numbers are what these tests are read for


NEVER_OPENS = BreakerSettings(
    failure_rate_threshold=1.0,
    core_failure_rate_threshold=1.0,
    consecutive_failures=1_000_000,
    slow_ms=3_600_000,
)
"""Breakers that are not in the way of what is looked at."""


def judge_by(bus: Bus, settings: BreakerSettings) -> None:
    """Have a caller's breakers go by these, those of lanes too that the table has told it of by now."""
    lanes = bus._core.outbound.lanes
    lanes._settings = settings
    for known in lanes._by_capability.values():
        for lane in known.values():
            lane.settings = lane.breaker._settings = settings


LAYER = '''
"""One layer: it calls what is below it, then does as the file says; each request is one line of the log."""
import asyncio
import json
import os
import pathlib

import reach
from tests.chaos.judging_rig import NEVER_OPENS, judge_by

NAME, BELOW = os.environ["NAME"], os.environ.get("BELOW", "")
LOG = os.open(os.environ["LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
PLAN = pathlib.Path(os.environ["PLAN"])
agent = reach.Agent(NAME)


def note(call: str) -> None:
    os.write(LOG, f"{NAME} {call}\\n".encode())


@agent.capability(f"layer.{NAME}", idempotent=True, max_concurrency=256)
async def work(call: str, ctx: reach.Context) -> str:
    # Many plans in a row are failures: what is looked at is not when that opens a breaker.
    judge_by(ctx.bus, NEVER_OPENS)
    note(call)
    plan = json.loads(PLAN.read_text()).get(NAME, "pass on")
    first = sum(line.split() == [NAME, call] for line in pathlib.Path(os.environ["LOG"]).read_text().splitlines()) == 1
    if BELOW:
        reply = await ctx.bus.request(f"layer.{BELOW}", {"call": call})
        if plan == "pass on":
            return reply.unwrap()
    if plan in ("refuse", "refuse first") and (first or plan == "refuse"):
        raise reach.NotExecuted
    if plan in ("hang", "hang first") and (first or plan == "hang"):
        await asyncio.sleep(60)
    if plan == "refuse later" and not first:
        raise reach.NotExecuted
    if plan == "error":
        raise ValueError
    if plan in ("die first",) and first:
        os._exit(3)
    return NAME


agent.run()
'''


@dataclass
class Layers:
    """Layers of real processes, each of which calls the next: `await Layers(fleet, folder).serve("a", "b", "c")`."""

    fleet: Fleet
    folder: Path
    names: tuple[str, ...] = ()

    @property
    def log(self) -> Path:
        return self.folder / "layers.log"

    @property
    def plan(self) -> Path:
        return self.folder / "plan.json"

    async def serve(self, *names: str, instances: int = 2) -> Bus:
        """Serve each layer by this many processes; gives a caller that knows all of them."""
        self.names = names
        self.log.touch()
        self.behave()
        for name, below in zip(names, (*names[1:], ""), strict=True):
            # A layer at a time: six programs that start at once take the machine from each other.
            started = [self._start(name, below) for _ in range(instances)]
            await asyncio.gather(*(program.ready() for program in started))
        bus = await self.fleet.connect()
        await bus.cards.instances(f"layer.{names[0]}")
        judge_by(bus, NEVER_OPENS)
        return bus

    def _start(self, name: str, below: str) -> Program:
        env = {"NAME": name, "BELOW": below, "LOG": str(self.log), "PLAN": str(self.plan)}
        return self.fleet.start(LAYER, name=f"layer-{name}", **env)

    def behave(self, **plan: str) -> None:
        """Say what the layers do from now on."""
        self.plan.write_text(json.dumps(plan))

    def seen(self, call: str) -> Counter[str]:
        """Count the requests of one logical call by layer."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return Counter(name for name, which in lines if which == call)


FAULTY = '''
"""An agent that fails as the file says; each request is a line of the log when it begins and when it ends."""
import asyncio
import json
import os
import pathlib
import random
import time

import reach

NAME, PLACES = os.environ["NAME"], int(os.environ["PLACES"])
LOG = os.open(os.environ["LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
PLAN = pathlib.Path(os.environ["PLAN"])
FAULTS = {
    "5xx": lambda: reach.UpstreamFailure(reason=reach.Reason.REMOTE_5XX),
    "refuse": reach.NotExecuted,
    "4xx": lambda: reach.UpstreamRefusal("no order 17", reason=reach.Reason.NOT_FOUND),
    "params": lambda: reach.SchemaInvalid("there is no such article"),
}
agent = reach.Agent(NAME)


def note(event: str) -> None:
    os.write(LOG, f"{NAME} {event} {time.monotonic():.6f}\\n".encode())


@agent.capability("lane.work", max_concurrency=PLACES, queue=int(os.environ["QUEUE"]), prioritised=True)
async def work() -> str:
    plan = json.loads(PLAN.read_text()).get(NAME, {})
    note("begin")
    try:
        await asyncio.sleep(plan.get("takes_s", 0.0))
        if random.random() < plan.get("share", 0.0):
            raise FAULTS[plan["fault"]]()
        return NAME
    finally:
        note("end")


agent.run()
'''


class Lanes:
    """Agents of one capability in processes of their own, which fail as they are told, and their log."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet = fleet
        self.log = folder / "lanes.log"
        self._plan = folder / "lanes.json"
        self._behaves: dict[str, dict[str, Any]] = {}

    async def serve(self, *names: str, places: int = 256, queue: int = 0) -> Bus:
        """Serve each by one process; gives a caller that knows them."""
        self.log.touch()
        for name in names:
            self.behave(name)
        env = {"LOG": str(self.log), "PLAN": str(self._plan), "PLACES": str(places), "QUEUE": str(queue)}
        programs = [self.fleet.start(FAULTY, name=f"lane-{name}", NAME=name, **env) for name in names]
        await asyncio.gather(*(program.ready() for program in programs))
        bus = await self.fleet.connect()
        await bus.cards.instances("lane.work")
        return bus

    def behave(self, name: str, **how: Any) -> None:
        """Say what an agent does from now on: `share` of requests with this `fault`, `takes_s` for each."""
        self._behaves[name] = how
        later = self._plan.with_suffix(".new")
        later.write_text(json.dumps(self._behaves))
        later.replace(self._plan)

    def begun(self, name: str) -> int:
        """Count the requests that an agent has begun."""
        return sum(line.startswith(f"{name} begin") for line in self.log.read_text().splitlines())

    def most_at_once(self, name: str, *, since: float) -> int:
        """Give how many requests an agent had at once, of those that began since then (monotonic s)."""
        moves = []
        for line in self.log.read_text().splitlines():
            who, event, at = line.split()
            if who == name and float(at) >= since:
                moves.append((float(at), 1 if event == "begin" else -1))
        most = now = 0
        for _, move in sorted(moves):
            now = max(0, now + move)
            most = max(most, now)
        return most


@dataclass(slots=True)
class Told:
    """One call: when it was made and when it ended, in seconds since the load began; and its reply."""

    began: float
    ended: float
    reply: Reply


class Load:
    """Calls at a steady rate, whatever becomes of them, for as long as it is left to run."""

    def __init__(self, make: Callable[[int], Any], *, per_s: float) -> None:
        self.calls: list[Told] = []
        self.began = monotonic()
        self._make = make
        self._per_s = per_s
        self._over = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    @property
    def now(self) -> float:
        return monotonic() - self.began

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            number = 0
            while not self._over.is_set():
                group.create_task(self._one(number))
                number += 1
                ahead_s = number / self._per_s - self.now
                if ahead_s > 0:
                    await asyncio.sleep(ahead_s)

    async def _one(self, number: int) -> None:
        began = self.now
        reply = await self._make(number)
        self.calls.append(Told(began, self.now, reply))

    async def end(self) -> list[Told]:
        """Make no more calls; gives all of them when they have ended."""
        self._over.set()
        await self._task
        return self.calls


def reasons(calls: list[Told]) -> Counter[str]:
    """Count how calls ended."""
    return Counter("ok" if one.reply.error is None else str(one.reply.error.reason) for one in calls)
