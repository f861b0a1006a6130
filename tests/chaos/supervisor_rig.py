"""A supervisor on a real server, in this process or in processes of its own, and agents for it to look after."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
from pydantic import BaseModel

import reach
from actors.sentinel.actor import Sentinel
from actors.supervisor.actor import Supervisor
from reach.bus.connection import Connection
from reach.bus.keys import Role
from reach.errors import ReachError
from reach.runtime.child import ChildSpec
from reach.runtime.host import Host
from reach.runtime.instance import Instance
from reach.runtime.platform import READY, platform_command
from reach.wire import codec, subjects
from reach.wire.card import CapabilityCard, Card
from reach.wire.registration import (
    CARDS,
    ROUTES,
    CardEntry,
    InstanceRow,
    Register,
    Registered,
    RouteAnswer,
    RouteVerb,
    read_answer,
    read_message,
    route_key,
)
from reach.wire.route import RouteEntry

ROOT = Path(__file__).resolve().parents[2]
ACTORS = ("actors.sentinel.actor:Sentinel", "actors.supervisor.actor:Supervisor")
ANSWER_S = 5.0
"""How long an answer may take that takes milliseconds: a crowded machine, and not a hang."""

M = TypeVar("M", bound=BaseModel)


def tell(text: str) -> None:
    """Print a measured number; `pytest -s` or a failure shows it."""
    print(f"  ▸ {text}", flush=True)  # noqa: T201 - numbers are what these tests are read for


class Platform:
    """A platform process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._stopped = False

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()

    def freeze(self) -> None:
        """Stop it where it stands."""
        self._stopped = True
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._stopped = False
        self.process.send_signal(signal.SIGCONT)

    async def end(self) -> None:
        """End it in order."""
        if self.process.returncode is not None:
            return
        if self._stopped:
            self.thaw()
        self.process.terminate()
        try:
            async with asyncio.timeout(10):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


class SupervisorRig:
    """See the module."""

    def __init__(self, system: Any, folder: Path) -> None:
        self.system = system
        self.folder = folder
        self._stack = AsyncExitStack()
        self._connections: dict[Role, Connection] = {}
        self._served: list[Callable[[], Any]] = []

    # -- supervisors ----------------------------------------------------------------------------------

    async def connection(self, role: Role) -> Connection:
        """Give a connection of a role, the same each time."""
        if role not in self._connections:
            self._connections[role] = await self.system_connection(role)
        return self._connections[role]

    async def system_connection(self, role: Role) -> Connection:
        """Open one more connection of a role; it is closed at the end."""
        opened = await Connection.open(self.system.settings(role), role=role.value)
        self._stack.push_async_callback(opened.close)
        return opened

    @asynccontextmanager
    async def supervisor(self) -> AsyncIterator[None]:
        """Host a sentinel and a supervisor in this process; it leads when this begins, and sees the agents leave."""

        async def connect_as(role: Role) -> Connection:
            return await Connection.open(self.system.settings(role), role=role.value)

        platform = await connect_as(Role.PLATFORM)
        specs = [ChildSpec("sentinel", Sentinel), ChildSpec("supervisor", Supervisor)]
        host = Host(platform, specs, connect=connect_as)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: host.run(signals=False))
                await self.led()
                yield
                await self._dismiss()
                host.stop()
        finally:
            await platform.close()

    async def platform(self) -> Platform:
        """Start a platform process; its supervisor leads, or follows."""
        path = self.folder / f"platform-{os.urandom(4).hex()}.log"
        with path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *platform_command(self.system.home, actors=ACTORS),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self.system.env,
            )
        platform = Platform(process)
        self._stack.push_async_callback(platform.end)
        assert process.stdout is not None
        async with asyncio.timeout(20):
            line = await process.stdout.readline()
        assert line.decode().startswith(READY), path.read_text("utf-8", "replace")
        return platform

    async def led(self, *, within_s: float = 10.0) -> float:
        """Wait until somebody leads; how long that took."""
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(within_s):
            while True:
                try:
                    await self.command(RouteVerb.INSTANCES, limit=1, timeout_s=1)
                except ReachError:
                    await asyncio.sleep(0.02)
                else:
                    break
        return asyncio.get_running_loop().time() - began

    # -- operators ------------------------------------------------------------------------------------

    async def command(self, verb: RouteVerb, *, timeout_s: float = ANSWER_S, **fields: Any) -> RouteAnswer:
        """Send a command. Raises what it was refused with."""
        operator = await self.connection(Role.OPERATOR)
        data = codec.pack({"by": "a test", **fields})
        return read_answer(
            await operator.request(subjects.route(verb), data, timeout_s=timeout_s), RouteAnswer
        )

    async def rows(self) -> dict[str, InstanceRow]:
        """Give the instances as the supervisor sees them."""
        answer = await self.command(RouteVerb.INSTANCES)
        return {row.instance: row for row in answer.instances}

    async def entry(self, capability: str) -> RouteEntry | None:
        """Read a capability's entry from the bucket."""
        return await self._read(ROUTES, route_key(capability), RouteEntry)

    async def card(self, instance: str) -> CardEntry | None:
        """Read an instance's entry from the bucket of cards."""
        return await self._read(CARDS, instance, CardEntry)

    async def _read(self, bucket: str, key: str, model: type[M]) -> M | None:
        operator = await self.connection(Role.OPERATOR)
        subject = f"$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.{key}"
        data = await operator.request(subject, b"", timeout_s=ANSWER_S)
        return read_message(codec.unpack(data), model) if data else None

    # -- agents ---------------------------------------------------------------------------------------

    async def serve(self, agent: reach.Agent) -> tuple[Instance, Callable[[], Any]]:
        """Serve an agent in this process; gives its instance, and what stops it."""
        stop = asyncio.Event()
        ready: asyncio.Future[Instance] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(
            agent.serve(
                settings=self.system.settings(Role.AGENT), stop=stop, ready=ready.set_result, drain_s=5
            )
        )
        waited: set[asyncio.Future[Any]] = {task, ready}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await task

        async def end() -> None:
            stop.set()
            await task

        self._served.append(end)
        return ready.result(), end

    async def _dismiss(self) -> None:
        """End all agents at once: without anybody who leads, each waits two seconds for being replaced."""
        ends, self._served = self._served, []
        await asyncio.gather(*(end() for end in ends))

    async def register(self, card: Card, **fields: Any) -> Registered:
        """Register somebody who is nothing but a card. Raises what it was refused with."""
        agent = await self.connection(Role.AGENT)
        body = Register(card=card, **fields).model_dump(mode="json")
        return read_answer(
            await agent.request(subjects.REGISTER, codec.pack(body), timeout_s=ANSWER_S), Registered
        )

    async def entered(self, context: Any) -> Any:
        """Enter something that is left at the end."""
        return await self._stack.enter_async_context(context)

    def at_end(self, action: Callable[[], Any]) -> None:
        """Have something awaited at the end."""
        self._stack.push_async_callback(action)

    async def close(self) -> None:
        """End everything."""
        try:
            await self._dismiss()
        finally:
            await self._stack.aclose()


def agent(name: str, capability: str = "job.do", *, version: str = "1.0.0", **options: Any) -> reach.Agent:
    """Make an agent that answers who it is."""
    labels = options.pop("labels", None)
    made = reach.Agent(name, version=version, labels=labels)

    @made.capability(capability, idempotent=True, **options)
    async def do(params: dict) -> dict:  # type: ignore[type-arg]
        return {"by": name, "version": version}

    return made


def card(number: int, *, agent_id: str = "many", capability: str = "job.do", **fields: Any) -> Card:
    """Make the card of an instance that is nothing else."""
    return Card(
        agent_id=agent_id,
        instance=f"{agent_id}-{number:08d}",
        generation=fields.pop("generation", 1_700_000_000_000),
        capabilities=(CapabilityCard(tag=capability, priority=fields.pop("priority", 10)),),
        **fields,
    )


@asynccontextmanager
async def opened(system: Any, folder: Path, *, led: bool = False) -> AsyncIterator[SupervisorRig]:
    """Provision a server of the test's own and hold a rig on it; `led`, with a platform that leads already."""
    await asyncio.to_thread(system.provision)
    rig = SupervisorRig(system, folder)
    try:
        if led:
            await rig.platform()
            await rig.led()
        yield rig
    finally:
        await rig.close()
