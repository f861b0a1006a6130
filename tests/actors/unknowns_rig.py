"""The actor of unknown outcomes on a real server, and its list as an operator sees it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from actors.unknowns.actor import Unknowns
from actors.unknowns.sweep import SWEEP_S
from reach.bus.connection import Connection
from reach.bus.keys import Role
from reach.runtime.child import ChildSpec
from reach.runtime.host import Host
from reach.wire import codec, subjects
from reach.wire.registration import read_answer
from reach.wire.unknown import UnknownAnswer, UnknownRow

READY_S = 10.0
SOON_S = 15.0


@asynccontextmanager
async def listed(system: Any, *, sweep_s: float = SWEEP_S) -> AsyncIterator[None]:
    """Host the actor for a while."""

    async def connect_as(role: Role) -> Connection:
        return await Connection.open(system.settings(role), role=role.value)

    ready = asyncio.Event()
    async with system.connection(Role.PLATFORM) as platform:
        host = Host(platform, [ChildSpec("unknowns", partial(Unknowns, sweep_s=sweep_s))], connect=connect_as)
        running = asyncio.create_task(host.run(ready=ready.set, signals=False))
        try:
            async with asyncio.timeout(READY_S):
                await ready.wait()
            yield
        finally:
            host.stop()
            await running


async def ask(system: Any, verb: str, **asked: Any) -> UnknownAnswer:
    """Ask the platform, as an operator. Raises `ReachError` where it refuses."""
    asked = {"by": "jo", **asked}
    async with system.connection(Role.OPERATOR) as operator:
        data = await operator.request(subjects.unknowns(verb), codec.pack(asked), timeout_s=SOON_S)
        return read_answer(data, UnknownAnswer)


async def rows(system: Any, capability: str, *, count: int = 1, **asked: Any) -> list[UnknownRow]:
    """Wait until so many entries of a capability are listed, and give them, the newest first."""

    def enough(found: UnknownAnswer) -> bool:
        return len(found.rows) >= count

    return list((await _until(system, enough, capability=capability, **asked)).rows)


async def _until(system: Any, is_so: Callable[[UnknownAnswer], bool], **asked: Any) -> UnknownAnswer:
    async with asyncio.timeout(SOON_S):
        while not is_so(found := await ask(system, "list", **asked)):  # noqa: ASYNC110 - a list has none
            await asyncio.sleep(0.05)
    return found
