"""Tasks beside bare JetStream and taskiq-nats: on one server, in turns, in one run (issue 7's figures).

Submitting is compared with publishing to a stream and awaiting its acknowledgement, over nats-py as it comes: what
a submission must cost at the least. A round trip is from submitting until it is known that the task is done.
"""

import asyncio
import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

import nats
import uvloop

import reach
from bench.stage import environment, start_server
from reach.bus.keys import Role
from reach.bus.settings import resolve

SUBMIT_FLOOR: Final = 0.6
ROUND_TRIP_FLOOR: Final = 0.15
"""Shares of the rate of a bare publish with acknowledgement (issue 7)."""

AT_A_TIME: Final = (64, 256)
BARE: Final = "JetStream publish, acknowledged"
SUBMIT: Final = "Reach submit"
ROUND_TRIP: Final = "Reach submit → completed"
TASKIQ: Final = "taskiq-nats kick"
TASKIQ_TRIP: Final = "taskiq-nats kick → done"
LABELS: Final = (BARE, SUBMIT, ROUND_TRIP, TASKIQ, TASKIQ_TRIP)

_PAYLOAD: Final = b"x" * 240
"""As large as the event of a submission without parameters."""

_READY_S: Final = 30.0
_DONE: Final = "bench.done"

One = Callable[[int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class TaskLine:
    """One way of doing it, with so many under way: how many a second, and the share of bare publishes."""

    way: str
    concurrency: int
    rate: float
    ratio: float


def measure_tasks(*, seconds: float, rounds: int) -> list[TaskLine]:
    """Measure everything in turns; medians over the rounds. Without taskiq-nats its lines are left out."""
    with tempfile.TemporaryDirectory(prefix="reach-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        stack.callback(start_server(folder).stop)
        env = environment(folder) | {"REACH_RECORDS": "off"}
        kinds = ["reach", "taskiq"] if _has_taskiq() else ["reach"]
        for kind in kinds:
            stack.enter_context(_worker(kind, env))
        stack.enter_context(_environment(env))
        return uvloop.run(_measure(seconds=seconds, rounds=rounds, with_taskiq="taskiq" in kinds))


def _has_taskiq() -> bool:
    try:
        metadata.version("taskiq-nats")
    except metadata.PackageNotFoundError:
        return False
    return True


@contextmanager
def _worker(kind: str, env: Mapping[str, str]) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.taskworker", kind]
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            if process.stdout is None or "ready" not in process.stdout.readline():
                raise RuntimeError(f"the worker of {kind} did not start")
            yield
        finally:
            process.terminate()
            process.wait(_READY_S)


@contextmanager
def _environment(env: Mapping[str, str]) -> Iterator[None]:
    """Let this process find the server, too."""
    before = dict(os.environ)
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


async def _measure(*, seconds: float, rounds: int, with_taskiq: bool) -> list[TaskLine]:
    async with reach.connect() as bus:
        client = await nats.connect(**resolve(role=Role.PLATFORM).to_nats_options())
        ways: dict[str, One] = {
            BARE: await _bare(client),
            SUBMIT: _submit(bus),
            ROUND_TRIP: _round_trip(bus),
        }
        brokers: Sequence[Any] = ()
        if with_taskiq:
            brokers, kick, trip = await _taskiq(client)
            ways |= {TASKIQ: kick, TASKIQ_TRIP: trip}
        gc.freeze()  # What was imported is not looked at again by the collector, whoever is measured.
        found: dict[tuple[int, str], list[float]] = {}
        for _ in range(rounds):
            for concurrency in AT_A_TIME:
                for way, one in ways.items():
                    rate = await _rate(one, concurrency=concurrency, seconds=seconds)
                    found.setdefault((concurrency, way), []).append(rate)
        for broker in brokers:
            await broker.shutdown()
        await client.close()
    rates = {key: median(values) for key, values in found.items()}
    return [
        TaskLine(way, concurrency, rate, rate / rates[concurrency, BARE])
        for (concurrency, way), rate in rates.items()
    ]


async def _rate(one: One, *, concurrency: int, seconds: float) -> float:
    """Do one thing with so many under way; how many a second."""
    done = 0
    ends_at = perf_counter() + seconds

    async def lane(number: int) -> None:
        nonlocal done
        while perf_counter() < ends_at:
            await one(number)
            done += 1

    began = perf_counter()
    await asyncio.gather(*(lane(number) for number in range(concurrency)))
    return done / (perf_counter() - began)


async def _bare(client: Any) -> One:
    jetstream = client.jetstream(publish_async_max_pending=4096)
    await jetstream.add_stream(name="BENCH_BARE", subjects=["bench.bare.*"])
    numbers = count()

    async def one(_: int) -> None:
        # A subject of its own for each, as tasks have.
        await jetstream.publish(f"bench.bare.{next(numbers)}", _PAYLOAD)

    return one


def _submit(bus: reach.Bus) -> One:
    async def one(_: int) -> None:
        await bus.submit("bench.parked", {})

    return one


def _round_trip(bus: reach.Bus) -> One:
    async def one(_: int) -> None:
        task = await bus.submit("bench.noop", {})
        await task.result()

    return one


async def _taskiq(client: Any) -> tuple[Sequence[Any], One, One]:
    from bench.taskworker import taskiq_broker  # noqa: PLC0415 - only where taskiq is

    broker, told = taskiq_broker()
    parked, unheard = taskiq_broker("parked")  # Nobody works on these, as nobody does on those of `submit`.
    await broker.startup()
    await parked.startup()
    waiting: dict[str, asyncio.Future[None]] = {}

    async def on_done(message: Any) -> None:
        answer = waiting.pop(message.subject, None)
        if answer is not None and not answer.done():
            answer.set_result(None)

    await client.subscribe(f"{_DONE}.*", cb=on_done)
    numbers = count()

    async def kick(_: int) -> None:
        await unheard.kiq("bench.unheard")

    async def trip(_: int) -> None:
        subject = f"{_DONE}.{next(numbers)}"
        answer = waiting[subject] = asyncio.get_running_loop().create_future()
        await told.kiq(subject)
        await answer

    return (broker, parked), kick, trip
