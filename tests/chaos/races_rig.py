"""Cancellations that race completions, over links that are cut so that acknowledgements are lost.

`CutLink` stands between a client and the server. When it is cut, what the client has sent still arrives, and what
the server answers does not; then the connection ends. So the client cannot know what became of what it wrote.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import TypeVar
from urllib.parse import urlsplit

import reach
from reach.bus.settings import Settings
from reach.call.client import Bus
from reach.wire.task import TERMINAL, TaskEvent, TaskState
from tests.runtime.fleet import eventually

T = TypeVar("T")

DEAF_S = 0.02
"""How long answers are lost before a link ends."""

CAPABILITY = "race.work"
_PIECE = 65536


class CutLink:
    """A way to the server that can be cut."""

    def __init__(self, settings: Settings) -> None:
        address = urlsplit(settings.servers[0])
        self._server = (address.hostname, address.port)
        self._settings = settings
        self._pairs: dict[asyncio.StreamWriter, asyncio.StreamWriter] = {}
        self._deaf: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.cuts = 0

    @property
    def settings(self) -> Settings:
        """What a client needs to come this way."""
        return replace(self._settings, servers=(f"nats://127.0.0.1:{self.port}",))

    @asynccontextmanager
    async def open(self) -> AsyncIterator["CutLink"]:
        """Let clients through for a while."""
        listener = await asyncio.start_server(self._through, "127.0.0.1", 0)
        self.port = listener.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            listener.close()
            self._end(list(self._pairs))

    def cut(self) -> None:
        """Lose what the server answers from now on, and end the connections a moment later."""
        self.cuts += 1
        clients = list(self._pairs)
        self._deaf.update(clients)
        asyncio.get_running_loop().call_later(DEAF_S, self._end, clients)

    async def _through(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            answers, server = await asyncio.open_connection(*self._server)
        except OSError:
            client.close()
            return
        self._pairs[client] = server
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._copy(reader, server, client))
                both.create_task(self._copy(answers, client, client))
        finally:
            self._end([client])

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, client: asyncio.StreamWriter
    ) -> None:
        try:
            while piece := await source.read(_PIECE):
                if target is not client or client not in self._deaf:
                    target.write(piece)
                    await target.drain()
        except ConnectionError:
            pass
        finally:
            self._end([client])

    def _end(self, clients: list[asyncio.StreamWriter]) -> None:
        for client in clients:
            server = self._pairs.pop(client, None)
            self._deaf.discard(client)
            if server is not None:
                server.transport.abort()
                client.transport.abort()


@dataclass(frozen=True)
class Race:
    """One race: how long the work takes, when it begins, when it is cancelled and by how many. Times in seconds."""

    key: str
    works_s: float
    delay_s: float
    cancel_after_s: float
    cancellers: int

    @classmethod
    def drawn(cls, number: int, random: Random) -> "Race":
        """Draw a race: most are cancelled while they run or end, some before they begin, some by two at once."""
        kind = random.random()
        delay_s = random.uniform(0.01, 0.05) if kind < 0.15 else 0.0
        at_once = 0.15 <= kind < 0.3
        return cls(
            key=f"r{number}",
            works_s=random.choice((0.0, 0.0, random.uniform(0.0, 0.03))),
            delay_s=delay_s,
            cancel_after_s=0.0 if at_once else delay_s + random.expovariate(1 / 0.02),
            cancellers=2 if random.random() < 0.2 else 1,
        )


@dataclass
class Outcome:
    """What became of all races."""

    tasks: dict[str, str] = field(default_factory=dict)
    """Keys by task id."""
    told: dict[str, list[TaskState]] = field(default_factory=lambda: defaultdict(list))
    """What each canceller was told."""
    events: dict[str, list[TaskEvent]] = field(default_factory=lambda: defaultdict(list))
    begun: Counter[str] = field(default_factory=Counter)
    finished: Counter[str] = field(default_factory=Counter)
    cuts: int = 0

    def ends(self, task_id: str) -> list[TaskState]:
        return [event.state for event in self.events[task_id] if event.state in TERMINAL]

    @property
    def without_end(self) -> list[str]:
        return [task_id for task_id in self.tasks if not self.ends(task_id)]

    @property
    def with_two_ends(self) -> list[str]:
        return [task_id for task_id in self.tasks if len(self.ends(task_id)) > 1]

    @property
    def told_otherwise(self) -> list[str]:
        """Tasks of which a canceller was told another end than the one that they have."""
        return [task_id for task_id in self.tasks if set(self.told[task_id]) - set(self.ends(task_id)[:1])]

    @property
    def begun_twice(self) -> list[str]:
        return [key for key, times in self.begun.items() if times > 1]

    @property
    def odd(self) -> list[str]:
        """Tasks whose end does not say what their handler did: finished is completed, and nothing else is."""
        return [
            task_id
            for task_id, key in self.tasks.items()
            if (TaskState.COMPLETED in self.ends(task_id)) != bool(self.finished[key])
        ]

    def table(self) -> str:
        """Give it as people read it."""
        ends = Counter(state.value for task_id in self.tasks for state in self.ends(task_id))
        rows = {
            "races": len(self.tasks),
            **{f"ended {state}": count for state, count in sorted(ends.items())},
            "begun": len(self.begun),
            "links cut": self.cuts,
            "without an end": len(self.without_end),
            "with two ends": len(self.with_two_ends),
        }
        return "\n".join(f"{name:<28}{value:>8}" for name, value in rows.items())


class Races:
    """Runs races: `callers` submit and cancel, `links` are cut each so often meanwhile."""

    def __init__(self, callers: list[Bus], links: list[CutLink], *, seed: int, at_once: int = 12) -> None:
        self._callers = callers
        self._links = links
        self._random = Random(seed)
        self._at_once = asyncio.Semaphore(at_once)
        self.outcome = Outcome()

    def agent(self) -> reach.Agent:
        """Give the agent whose work is raced."""
        agent = reach.Agent("racer")
        outcome = self.outcome

        @agent.task(CAPABILITY, max_concurrency=24)
        async def work(key: str, seconds: float) -> str:
            outcome.begun[key] += 1
            if seconds:
                await asyncio.sleep(seconds)
            outcome.finished[key] += 1
            return key

        return agent

    async def run(self, number: int, *, watcher: Bus, cut_each_s: float) -> Outcome:
        """Run so many races, and wait until all have ended, and a little longer."""
        outcome = self.outcome
        watching = asyncio.create_task(self._watch(watcher))
        cutting = asyncio.create_task(self._cut(cut_each_s))
        try:
            async with asyncio.TaskGroup() as group:
                for one in range(number):
                    group.create_task(self._race(Race.drawn(one, self._random)))
            await eventually(lambda: not outcome.without_end, within_s=20.0)
            await asyncio.sleep(0.5)  # Whoever would write a second end has done so by then.
        finally:
            for task in (watching, cutting):
                task.cancel()
            await asyncio.wait({watching, cutting})
        outcome.cuts = sum(link.cuts for link in self._links)
        return outcome

    async def _race(self, race: Race) -> None:
        async with self._at_once:
            submitter, *others = self._random.sample(self._callers, k=len(self._callers))
            task = await insisted(
                lambda: submitter.submit(
                    CAPABILITY,
                    {"key": race.key, "seconds": race.works_s},
                    delay_s=race.delay_s,
                    idempotency_key=race.key,
                )
            )
            self.outcome.tasks[task.id] = race.key
            await asyncio.sleep(race.cancel_after_s)
            handles = [task, *(other.task(task.id) for other in others)][: race.cancellers]
            told = await asyncio.gather(*(insisted(handle.cancel) for handle in handles))
            self.outcome.told[task.id].extend(told)

    async def _watch(self, bus: Bus) -> None:
        async for event in bus.task_events(capability=CAPABILITY, since="start"):
            self.outcome.events[event.task_id].append(event)

    async def _cut(self, each_s: float) -> None:
        while True:
            await asyncio.sleep(each_s * self._random.uniform(0.5, 1.5))
            self._random.choice(self._links).cut()


async def insisted(order: Callable[[], Awaitable[T]]) -> T:
    """Do it again while nobody can be asked: whoever cancels by hand does, too."""
    while True:
        try:
            return await order()
        except (reach.Unreachable, reach.CallTimeout):
            await asyncio.sleep(0.02)
