"""What a test of agents needs: a system of its own, agents served in it, a bus into it, and every call's record.

::

    async def test_greeting(reach_harness: Harness) -> None:
        await reach_harness.serve(agent)
        async with reach_harness.bus() as bus:
            assert "Hello, Ada!" == (await bus.request("greet.hello", {"name": "Ada"})).unwrap()
        assert ["ok"] == [record.outcome for record in reach_harness.records]

Agents that a test serves are drained when it ends, so a handler that hangs shows; the server is a real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from reach.bus.keys import Role
from reach.bus.settings import Settings, resolve
from reach.call.client import Bus, connect
from reach.observe.records import MemorySink, Recorder

if TYPE_CHECKING:
    from reach.call.options import CallOptions
    from reach.runtime.agent import Agent
    from reach.runtime.instance import Instance
    from reach.wire.record import ReachRecord

READY_S: Final = 10.0
"""How long an agent may take to be ready; it takes milliseconds, unless its own `on_start` does not."""

DRAIN_S: Final = 5.0
"""How long a handler may still run when its test is over."""


class Harness:
    """One test's own Reach, at the state folder `home`. Enter it where agents are to be served.

    The plugin's fixture `reach_harness` is entered already. `records` holds one record for each call that was
    made through this harness's buses, and by the agents that it serves, in the order in which they ended.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._sink = MemorySink()
        self._serving: dict[Instance, tuple[asyncio.Event, asyncio.Task[None]]] = {}
        self._held = AsyncExitStack()

    @property
    def env(self) -> dict[str, str]:
        """What a program in another process needs in its environment to be part of this test."""
        return {"REACH_HOME": str(self.home), "REACH_RECORDS": "off"}

    @property
    def url(self) -> str:
        """Address of the server, without credentials."""
        return self.settings().servers[0]

    @property
    def records(self) -> list[ReachRecord]:
        """One record a call, so far."""
        return self._sink.records

    def settings(self, role: Role = Role.CALLER) -> Settings:
        """How a role connects."""
        return resolve(role=role, env=self.env)

    def recorder(self) -> Recorder:
        """Make a recorder that writes into `records`."""
        return Recorder(self._sink)

    @asynccontextmanager
    async def bus(self, *, role: Role = Role.CALLER, **options: Unpack[CallOptions]) -> AsyncIterator[Bus]:
        """Connect; `options` are the defaults of its calls. Raises `Unreachable`."""
        recorder = self.recorder()
        try:
            async with connect(role=role, settings=self.settings(role), recorder=recorder) as bus:
                yield bus.with_options(**options) if options else bus
        finally:
            recorder.close()

    async def held_bus(self, **options: Unpack[CallOptions]) -> Bus:
        """Connect until the harness is left."""
        return await self._held.enter_async_context(self.bus(**options))

    async def serve(self, agent: Agent) -> Instance:
        """Serve an agent until the harness is left, or until `stop`. Returns once it takes requests.

        The same agent may be served several times: each is an instance of its own. Raises what
        `Agent.serve` raises, and `TimeoutError` when it is not ready within 10 s.
        """
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[Instance] = loop.create_future()
        stop = asyncio.Event()
        recorder = self.recorder()
        # Owned by this harness, which awaits it in `stop` or when it is left.
        task = loop.create_task(
            agent.serve(
                settings=self.settings(Role.AGENT),
                stop=stop,
                ready=ready.set_result,
                recorder=recorder,
                drain_s=DRAIN_S,
            ),
            name=f"serve {agent.agent_id}",
        )
        task.add_done_callback(lambda _: recorder.close())
        waited_for: set[asyncio.Future[Any]] = {ready, task}
        await asyncio.wait(waited_for, timeout=READY_S, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            if task.done():
                await task
            task.cancel()
            await asyncio.wait({task})
            raise TimeoutError(f"{agent.agent_id} was not ready within {READY_S:g} s: is its on_start stuck?")
        instance = ready.result()
        self._serving[instance] = (stop, task)
        return instance

    async def stop(self, instance: Instance) -> None:
        """Drain one instance and wait until it has gone. Raises what serving it raised."""
        stop, task = self._serving.pop(instance)
        stop.set()
        await task

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close buses, then drain agents; what went wrong there fails a test that is otherwise fine."""
        failures: list[BaseException] = []
        try:
            await self._held.aclose()
        except Exception as failed:  # noqa: BLE001 - the agents are drained all the same
            failures.append(failed)
        for stop, _ in self._serving.values():
            stop.set()
        tasks = [task for _, task in self._serving.values()]
        self._serving.clear()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        failures += [failed for failed in ended if failed is not None]
        if failures and error is None:
            raise failures[0]
