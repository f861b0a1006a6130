"""Workers that are killed, a server that is killed, and the account of what became of every task.

The effects of tasks are lines that their handlers append to a file, one write each, before they work: so the file
knows what was begun, whatever was killed afterwards. The nemesis writes down whom it killed.
"""

import asyncio
import os
import signal
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic

import reach
from reach.call.client import Bus
from reach.faults import Reason
from reach.wire.task import TERMINAL, TaskEvent, TaskState
from tests.runtime.fleet import Fleet, Program

PLACES = 3
WORKER = """
import asyncio, os, sys
import reach

agent = reach.Agent("chaos")


def note(key: str, log: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, (key + "\\n").encode())
    os.close(file)


@agent.task("chaos.safe", idempotent=True, max_concurrency={places}, ack_wait_s=2.0)
async def safe(key: str, log: str, seconds: float, ctx: reach.TaskContext) -> str:
    note(key, log)
    await ctx.progress(0.5)
    await asyncio.sleep(seconds)
    return key


@agent.task("chaos.once", max_concurrency={places}, ack_wait_s=2.0)
async def once(key: str, log: str, seconds: float) -> str:
    note(key, log)
    await asyncio.sleep(seconds)
    return key


agent.run()
"""


@dataclass(frozen=True)
class Storm:
    """How much, and how hard. Times in seconds."""

    tasks: int
    kills: int
    restarts: int
    longest_s: float
    each_s: float = 2.0
    workers: int = 4
    within_s: float = 90.0
    seed: int = 7


@dataclass
class Account:
    """What became of every task, beside what the nemesis did."""

    storm: Storm
    submitted: dict[str, str] = field(default_factory=dict)
    """Capability by task id."""
    keys: dict[str, str] = field(default_factory=dict)
    """What a task notes when it begins, by task id."""
    events: dict[str, list[TaskEvent]] = field(default_factory=lambda: defaultdict(list))
    begun: Counter[str] = field(default_factory=Counter)
    killed: set[str] = field(default_factory=set)
    kills: int = 0
    restarts: int = 0
    seconds: float = 0.0

    def ends(self, task_id: str) -> list[TaskEvent]:
        return [event for event in self.events[task_id] if event.state in TERMINAL]

    @property
    def lost(self) -> list[str]:
        """Tasks without an end."""
        return [task_id for task_id in self.submitted if not self.ends(task_id)]

    @property
    def ended_twice(self) -> list[str]:
        return [task_id for task_id in self.submitted if len(self.ends(task_id)) > 1]

    @property
    def done_twice(self) -> list[str]:
        """What is not idempotent, and was begun more than once."""
        return [
            task_id
            for task_id, capability in self.submitted.items()
            if capability == "chaos.once" and self.begun[self.keys[task_id]] > 1
        ]

    @property
    def incomplete(self) -> list[tuple[str, TaskState]]:
        """Idempotent ones that did not complete."""
        return [
            (task_id, self.ends(task_id)[-1].state)
            for task_id, capability in self.submitted.items()
            if capability == "chaos.safe"
            and self.ends(task_id)
            and self.ends(task_id)[-1].state is not TaskState.COMPLETED
        ]

    @property
    def unknown(self) -> list[str]:
        """What nobody knows whether it was done."""
        return [
            task_id
            for task_id in self.submitted
            for end in self.ends(task_id)
            if end.error is not None and end.error.reason is Reason.OUTCOME_UNKNOWN
        ]

    @property
    def unexplained(self) -> list[str]:
        """Unknown ones whose worker was not killed."""
        return [
            task_id
            for task_id in self.unknown
            if not {event.instance for event in self.events[task_id] if event.state is TaskState.RUNNING}
            & self.killed
        ]

    def table(self) -> str:
        """Give it as people read it."""
        states = Counter(
            self.ends(task_id)[-1].state.value for task_id in self.submitted if self.ends(task_id)
        )
        taken_over = sum(any(event.lost for event in events) for events in self.events.values())
        rows = {
            "tasks": len(self.submitted),
            "workers killed": self.kills,
            "server killed": self.restarts,
            "seconds": round(self.seconds, 1),
            **{f"ended {state}": count for state, count in sorted(states.items())},
            "taken over": taken_over,
            "lost": len(self.lost),
            "ended twice": len(self.ended_twice),
            "done twice, not idempotent": len(self.done_twice),
            "outcome unknown": len(self.unknown),
            "unknown without a kill": len(self.unexplained),
        }
        return "\n".join(f"{name:<28}{value:>8}" for name, value in rows.items())


class TaskStorm:
    """Runs a storm."""

    def __init__(self, fleet: Fleet, folder: Path, storm: Storm) -> None:
        self._fleet = fleet
        self._log = folder / "effects"
        self._storm = storm
        self._random = Random(storm.seed)
        self._workers: list[Program] = []
        self.account = Account(storm)

    async def run(self) -> Account:
        """Submit, do harm meanwhile, and wait until all have ended, and a little longer."""
        began = monotonic()
        self._workers += await asyncio.gather(
            *(self._worker(number) for number in range(self._storm.workers))
        )
        bus = await self._fleet.connect()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch(await self._fleet.connect()))
            harm = group.create_task(self._harm())
            await self._submit(bus)
            with suppress(TimeoutError):  # Then the account says what is missing.
                async with asyncio.timeout(self._storm.within_s):
                    await harm
                    while self.account.lost:  # noqa: ASYNC110 - an account has no event to offer
                        await asyncio.sleep(0.2)
            await asyncio.sleep(3.0)  # Whoever would write a second end has done so by then.
            watching.cancel()
        self.account.seconds = monotonic() - began
        self.account.begun.update(self._log.read_text().split())
        return self.account

    async def _worker(self, number: int) -> Program:
        source = WORKER.format(places=PLACES)
        return await self._fleet.program(source, name=f"worker{number}")

    async def _submit(self, bus: Bus) -> None:
        for number in range(self._storm.tasks):
            capability = "chaos.once" if number % 2 else "chaos.safe"
            key = f"{capability.rpartition('.')[2]}-{number}"
            seconds = self._random.uniform(0.05, self._storm.longest_s)
            while True:
                try:
                    task = await bus.submit(
                        capability,
                        {"key": key, "log": str(self._log), "seconds": seconds},
                        idempotency_key=key,
                    )
                except reach.ReachError:
                    await asyncio.sleep(0.1)  # The server was away for longer than a submission waits.
                else:
                    break
            self.account.submitted[task.id] = capability
            self.account.keys[task.id] = key

    async def _watch(self, bus: Bus) -> None:
        async for event in bus.task_events(capability="chaos.*", since="start"):
            self.account.events[event.task_id].append(event)

    async def _harm(self) -> None:
        """Kill a worker each so often, and replace it; kill the server in between."""
        storm = self._storm
        at = {round(storm.kills * (number + 1) / (storm.restarts + 1)) for number in range(storm.restarts)}
        for number in range(storm.kills):
            await asyncio.sleep(storm.each_s)
            if number in at:
                await self._kill_server()
            place = self._random.randrange(len(self._workers))
            victim = self._workers[place]
            self.account.killed.update(victim.instances)
            victim.kill()
            self.account.kills += 1
            self._workers[place] = await self._worker(storm.workers + number)

    async def _kill_server(self) -> None:
        os.kill(self._fleet.system.server.info.pid, signal.SIGKILL)
        await asyncio.sleep(0.3)
        await asyncio.to_thread(self._fleet.system.restart)
        self.account.restarts += 1
