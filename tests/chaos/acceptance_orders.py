"""Agents of two tiers and supervisors that start, end, crash and lose their links, watched all the while.

Everything is in one process, on a loop of its own, so that what each instance holds can be looked at every millisecond.
What ought to be is worked out here from who is there, not asked of the supervisor:

- somebody who is due a ticket holds one;
- under a leader each instance of the best usable tier holds one, those of worse tiers none, unless the table says that
  the better tier is just returning.

`World.longest_s` is how long that was ever not so at a stretch. Nothing is judged while a link is down.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from actors.sentinel.actor import Sentinel
from actors.supervisor.actor import Supervisor
from actors.supervisor.boottime import boottime
from actors.supervisor.governor import Governor
from reach.bus.connection import Connection
from reach.bus.keys import Role
from reach.runtime.child import ChildSpec
from reach.runtime.host import Host
from reach.runtime.instance import Instance
from reach.runtime.registration import Registration
from reach.wire.registration import RouteVerb
from reach.wire.route import RouteEntry
from tests.chaos.supervisor_rig import SupervisorRig, agent

SETTLE_S = 9.0
"""Within this everything must be right again; how long it really was wrong is what is measured."""

UNKNOWN = "unknown to the leader"
"""Not a wrong membership: who came while nobody led holds what it should, and registers within seconds."""

T = TypeVar("T")


class Loop:
    """An event loop in a thread of its own, for tests that cannot be coroutines."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="world", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], *, within_s: float = 60.0) -> T:
        """Run something there, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(within_s)

    def close(self) -> None:
        """End it."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Seat:
    """A supervisor in this process, with a connection of its own."""

    def __init__(self, platform: Connection, host: Host, actors: list[Supervisor]) -> None:
        self._platform = platform
        self._host = host
        self._actors = actors
        self._task = asyncio.create_task(host.run(signals=False))

    @classmethod
    async def take(cls, system: Any) -> "Seat":
        """Start one."""

        async def connect_as(role: Role) -> Connection:
            return await Connection.open(system.settings(role), role=role.value)

        made: list[Supervisor] = []

        class Kept(Supervisor):
            async def on_start(self) -> None:
                made.append(self)
                await super().on_start()

        platform = await connect_as(Role.PLATFORM)
        specs = [ChildSpec("sentinel", Sentinel), ChildSpec("supervisor", Kept)]
        return cls(platform, Host(platform, specs, connect=connect_as), made)

    @property
    def governor(self) -> Governor | None:
        """What it governs with, once it leads and has read the table."""
        for actor in self._actors:
            if actor._governor is not None and actor._election.leads(boottime()):
                return actor._governor
        return None

    async def end(self) -> None:
        """End it in order: it gives the leader's key up."""
        self._host.stop()
        await self._task
        await self._platform.close()

    async def crash(self) -> None:
        """End it so that it can say nothing any more: the key ends by itself."""
        await self._platform.close()
        self._host.stop()
        await asyncio.wait({self._task})
        self._task.exception()


class World:
    """Who is there. `trips` are the registrations' round trips, in seconds."""

    def __init__(self, system: Any, folder: Path, *, capability: str) -> None:
        self.system = system
        self.capability = capability
        self.rig = SupervisorRig(system, folder)
        self.served: dict[Instance, tuple[int, Callable[[], Any]]] = {}
        self.seats: list[Seat] = []
        self.barred: set[int] = set()
        self.log: list[str] = []
        self.trips: list[float] = []
        self.longest_s: dict[str, tuple[float, str]] = {}
        self.lag_s = 0.0
        self._leaving: set[Instance] = set()
        self._entry: RouteEntry | None = None
        self._since: dict[str, float] = {}
        self._watching: asyncio.Task[None] | None = None

    # -- what can happen ------------------------------------------------------------------------------

    async def start(self, tier: int) -> None:
        """Start an agent of a tier."""
        one = agent(f"{self.capability.replace('.', '-')}-{tier}", self.capability, priority=tier)
        instance, end = await self.rig.serve(one)
        self.served[instance] = (tier, end)

    async def stop(self, number: int) -> None:
        """End an agent in order; without a leader not the last of its tier, for nobody could replace it."""
        instance = list(self.served)[number % len(self.served)]
        tier, end = self.served[instance]
        others = [one for one, (its, _) in self.served.items() if its == tier and one is not instance]
        if self.governor is None and not others:
            return
        self._leaving.add(instance)
        await end()
        del self.served[instance]
        self._leaving.discard(instance)

    async def cut(self, number: int) -> None:
        """Take an agent's link away; it comes back by itself."""
        instance = list(self.served)[number % len(self.served)]
        link = instance.connection.link
        if link is not None:
            link.abort()
        await asyncio.sleep(0.01)

    async def lead(self) -> None:
        """Start a supervisor."""
        self.seats.append(await Seat.take(self.system))

    async def end_lead(self, number: int) -> None:
        """End a supervisor in order."""
        await self.seats.pop(number % len(self.seats)).end()

    async def crash(self, number: int) -> None:
        """End a supervisor without a word."""
        await self.seats.pop(number % len(self.seats)).crash()

    async def both(self, tier: int) -> None:
        """Start a supervisor and an agent at once."""
        await asyncio.gather(self.lead(), self.start(tier))

    async def bar(self, tier: int) -> None:
        """Let an operator take a tier out."""
        await self.rig.command(RouteVerb.OPEN, capability=self.capability, provider=self._provider(tier))
        self.barred.add(tier)

    async def unbar(self, tier: int) -> None:
        """Let it back."""
        await self.rig.command(RouteVerb.CLOSE, capability=self.capability, provider=self._provider(tier))
        self.barred.discard(tier)

    def _provider(self, tier: int) -> str:
        return f"{self.capability.replace('.', '-')}-{tier}"

    # -- what is ------------------------------------------------------------------------------------

    @property
    def governor(self) -> Governor | None:
        """The leader's."""
        return next((seat.governor for seat in self.seats if seat.governor is not None), None)

    def held(self, instance: Instance) -> int:
        """An instance's tickets."""
        return instance.membership.tickets(self.capability)

    def wrong(self) -> list[str]:
        """What is not as it ought to be; nothing is said while a link is down."""
        here = {one: tier for one, (tier, _) in self.served.items() if one not in self._leaving}
        if not all(one.connection.connected for one in here):
            return []
        governor = self.governor
        if governor is not None:
            self._entry = governor.planner.entries.get(self.capability, self._entry)
        usable = sorted({tier for tier in here.values() if tier not in self.barred})
        found = []
        in_use = [] if self._entry is None else [tier.priority for tier in self._entry.tiers]
        # Without a leader an instance of a worse tier than the table's stands by.
        due = usable and (governor is not None or not in_use or usable[0] <= max(in_use))
        if due and not any(self.held(one) for one in self.served):
            found.append("nobody")
        if governor is not None and usable:
            best = usable[0]
            returning = len(in_use) == 2 and best == in_use[0]
            if any(not self.held(one) for one, tier in here.items() if tier == best):
                found.append("idle")
            allowed = {best, *(in_use if returning else [])}
            if any(self.held(one) for one, tier in here.items() if tier not in allowed):
                found.append("surplus")
            known = governor.roster.members
            if any(one.name not in known for one in here):
                found.append(UNKNOWN)
        return found

    # -- watching -----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Begin to watch."""
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        last = monotonic()
        while True:
            await asyncio.sleep(0.001)
            now = monotonic()
            self.lag_s = max(self.lag_s, now - last - 0.001)
            last = now
            wrong = self.wrong()
            for kind in list(self._since):
                if kind not in wrong:
                    del self._since[kind]
            for kind in wrong:
                since = self._since.setdefault(kind, now)
                if now - since > self.longest_s.get(kind, (0.0, ""))[0]:
                    self.longest_s[kind] = (now - since, " ".join(self.log))

    async def settled(self) -> None:
        """Wait until everything is right, and stays so for a moment; somebody leads, if somebody can."""
        try:
            async with asyncio.timeout(SETTLE_S):
                right = 0
                while right < 20:
                    await asyncio.sleep(0.002)
                    ok = not self.wrong() and (self.governor is not None or not self.seats)
                    right = right + 1 if ok and all(one.connection.connected for one in self.served) else 0
        except TimeoutError:
            held = [(tier, self.held(one)) for one, (tier, _) in self.served.items()]
            raise AssertionError(f"after {self.log}: {self.wrong()}, (tier, tickets) {held}") from None

    async def close(self) -> None:
        """End everything."""
        if self._watching is not None:
            self._watching.cancel()
        for seat in self.seats:
            await seat.end()
        await self.rig.close()


def timed(trips: list[float]) -> Callable[[Registration], Coroutine[Any, Any, None]]:
    """Make a `Registration._take_part` that notes how long it took, where a supervisor answered."""
    original = Registration._take_part

    async def take_part(registration: Registration) -> None:
        began = monotonic()
        await original(registration)
        if registration.supervised:
            trips.append(monotonic() - began)

    return take_part


def count_rules(log: list[str]) -> str:
    """How often each thing happened."""
    return ", ".join(f"{name} {number}" for name, number in sorted(Counter(log).items()))
