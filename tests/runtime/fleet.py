"""Agents and callers of one test, on a real server: in this process, or as programs of their own.

Whatever a test does, its end proves what must hold after every test: no call is left waiting, no slot is
taken, no handler of the read loop failed.

    fleet = Fleet(system)
    instance = await fleet.serve(agent)          # in this process
    bus = await fleet.connect()                  # records of its calls are in fleet.records
    program = await fleet.program(source)        # python, in a process of its own
"""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import nats.aio.client

import reach
from reach.bus.connection import Connection
from reach.bus.keys import Role
from reach.bus.settings import Settings
from reach.call.client import Bus
from reach.observe.records import MemorySink, NullSink, Recorder
from reach.runtime.instance import Instance
from reach.wire.record import ReachRecord

READY_S = 60.0
"""How long a program may take to serve: imports on a busy machine."""

SOON_S = 10.0
"""How long what must come about may take before a test fails instead of hanging."""


async def eventually(condition: Callable[[], Any], *, within_s: float = SOON_S) -> None:
    """Wait until something holds that has no event to offer."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.002)


class Program:
    """A Python program in a process of its own; what it prints goes to a file."""

    def __init__(self, folder: Path, name: str, source: str, env: dict[str, str]) -> None:
        self.script = folder / f"{name}.py"
        self.script.write_text(source)
        self.output = folder / f"{name}-{time.monotonic_ns()}.out"
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(self.script)], env=env, stdout=out, stderr=subprocess.STDOUT
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def printed(self) -> str:
        """Everything that it has printed so far."""
        return self.output.read_text(errors="replace")

    @property
    def instances(self) -> list[str]:
        """Names of the instances that serve in it."""
        return [line.split()[0] for line in self.printed.splitlines() if " serves " in line]

    async def ready(self) -> None:
        """Wait until it serves."""
        try:
            await eventually(lambda: self.instances or self.process.poll() is not None, within_s=READY_S)
        except TimeoutError:
            raise AssertionError(f"no agent served within {READY_S} s:\n{self.printed}") from None
        assert self.process.poll() is None, self.printed

    def terminate(self) -> None:
        """Ask it to end in order."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        self.process.wait()

    async def ended(self, *, within_s: float = SOON_S) -> int:
        """Wait for its end; the exit code."""
        await eventually(lambda: self.process.poll() is not None, within_s=within_s)
        return self.process.wait()


class Fleet:
    """See the module."""

    def __init__(self, system: Any, folder: Path) -> None:
        self.system = system
        self.folder = folder
        self.sink = MemorySink()
        self.agent_sink = MemorySink()
        self.programs: list[Program] = []
        self.buses: list[Bus] = []
        self.instances: list[Instance] = []
        self.left_running = 0
        """Slots that a test leaves taken on purpose (threads that cannot be stopped)."""
        self._stack = AsyncExitStack()
        self._serving: list[tuple[asyncio.Event, asyncio.Task[None]]] = []

    @property
    def records(self) -> list[ReachRecord]:
        """Records of the calls that the callers made, in the order of their ends."""
        return self.sink.records

    @property
    def agent_records(self) -> list[ReachRecord]:
        """Records of the calls that agents made while they served."""
        return self.agent_sink.records

    def recorder(self, sink: MemorySink | NullSink) -> Recorder:
        """Give a recorder that keeps everything."""
        recorder = Recorder(sink, rate_per_s=1_000_000)
        self._stack.callback(recorder.close)
        return recorder

    async def connect(self, role: Role = Role.CALLER, *, settings: Settings | None = None) -> Bus:
        """Connect a caller; it is closed at the end."""
        bus = await self._stack.enter_async_context(
            reach.connect(
                settings=settings or self.system.settings(role), role=role, recorder=self.recorder(self.sink)
            )
        )
        self.buses.append(bus)
        return bus

    async def connection(self, role: Role = Role.CALLER) -> Connection:
        """Open a bare connection; it is closed at the end."""
        found: Connection = await self._stack.enter_async_context(self.system.connection(role))
        return found

    async def stranger(self, role: Role = Role.CALLER) -> nats.aio.client.Client:
        """Connect with bare nats-py, as a program that has never heard of us."""
        client = await nats.connect(**self.system.settings(role).to_nats_options())
        self._stack.push_async_callback(client.close)
        return client

    async def serve(self, agent: reach.Agent, *, drain_s: float = 5.0) -> Instance:
        """Serve one instance of an agent in this process, until the end or `stop`."""
        stop = asyncio.Event()
        ready: asyncio.Future[Instance] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(
            agent.serve(
                settings=self.system.settings(Role.AGENT),
                stop=stop,
                ready=ready.set_result,
                recorder=self.recorder(self.agent_sink),
                drain_s=drain_s,
            )
        )
        waited: set[asyncio.Future[Any]] = {task, ready}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await task
        self._serving.append((stop, task))
        instance = ready.result()
        self.instances.append(instance)
        return instance

    async def stop(self, instance: Instance) -> None:
        """Let one instance leave in order."""
        stop, task = self._serving[self.instances.index(instance)]
        stop.set()
        await task

    async def program(self, source: str, *, name: str = "agent", **env: str) -> Program:
        """Run a program and wait until it serves."""
        program = self.start(source, name=name, **env)
        await program.ready()
        return program

    def start(self, source: str, *, name: str = "agent", **env: str) -> Program:
        """Run a program."""
        root = Path(__file__).resolve().parents[2]
        program = Program(self.folder, name, source, {**self.system.env, "PYTHONPATH": str(root), **env})
        self.programs.append(program)
        return program

    async def close(self) -> None:
        """End everything, and prove that nothing is left."""
        for stop, _ in self._serving:
            stop.set()
        ends = await asyncio.gather(*(task for _, task in self._serving), return_exceptions=True)
        for program in self.programs:
            if program.process.poll() is None:
                program.terminate()
        for program in self.programs:
            try:
                await program.ended(within_s=5.0)
            except TimeoutError:
                program.kill()
        with suppress(TimeoutError):  # Events stay open for a second.
            await eventually(lambda: not any(bus.pending for bus in self.buses), within_s=2.0)
        held = {f"{bus.connection.who}: {len(bus._core.mux)}": bus for bus in self.buses if bus.pending}
        slots = sum(bus._core.outbound.open_calls for bus in self.buses)
        accepted = [bus for bus in self.buses if bus._core.mux._by_instance]
        faults = sum(bus.connection.faults for bus in self.buses)
        await self._stack.aclose()
        faults += sum(instance.connection.faults for instance in self.instances)
        running = sum(one.running for instance in self.instances for one in instance.served)
        assert [None] * len(ends) == ends
        assert {} == held
        assert 0 == slots
        assert [] == accepted
        assert 0 == faults
        assert self.left_running == running
