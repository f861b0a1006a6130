"""`reach bench`: what a governed call costs beside a bare NATS request, here and now.

Both sides of both ways run in this process over the same server, in turns, so that a busy machine slows both:
the ratio means more than either rate. Without a server at hand a temporary one is started and removed again.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reach.cli import options as opt
from reach.cli.dial import run

if TYPE_CHECKING:
    from reach.bus.keys import Role
    from reach.bus.settings import Settings

EXAMPLES = (
    ("10 000 calls, 64 at a time, each way", "reach bench"),
    ("More at once, larger payloads", "reach bench --calls 20000 --concurrency 256 --size 4096"),
    ("For a script that watches the ratio", "reach bench --json | jq .ratio"),
)

_CAPABILITY = "reach.bench.echo"
_BARE_SUBJECT = "cap.reach.bench.bare"
_WARM_UP = 200


@dataclass(slots=True)
class Measured:
    """One way of calling: how long the calls took, each and all together."""

    name: str
    latencies_s: list[float] = field(default_factory=list)
    seconds: float = 0.0
    failed: int = 0

    @property
    def rate(self) -> float:
        """Calls a second."""
        return len(self.latencies_s) / self.seconds if self.seconds else 0.0

    def percentile_ms(self, percent: float) -> float:
        """Give a percentile of the latencies in milliseconds, by nearest rank."""
        ordered = sorted(self.latencies_s)
        at = min(len(ordered) - 1, int(len(ordered) * percent / 100))
        return 1000 * ordered[at] if ordered else 0.0

    def to_map(self) -> dict[str, Any]:
        """Give it for programs."""
        return {
            "calls": len(self.latencies_s),
            "failed": self.failed,
            "per_second": round(self.rate),
            "p50_ms": round(self.percentile_ms(50), 3),
            "p99_ms": round(self.percentile_ms(99), 3),
        }


def bench(
    calls: Annotated[int, typer.Option("--calls", "-c", min=1, metavar="N", help="Calls each way.")] = 10_000,
    concurrency: Annotated[
        int,
        typer.Option("--concurrency", "-n", min=1, max=10_000, metavar="N", help="Calls under way at once."),
    ] = 64,
    size: Annotated[
        int, typer.Option("--size", min=0, max=512 * 1024, metavar="BYTES", help="Size of the payload.")
    ] = 200,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", min=1, max=100, help="Turns each way takes.")
    ] = 3,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """Measure calls through Reach beside bare NATS requests.

    Caller and agent share this process, so on a machine of its own each side is faster than shown; the ratio is
    what to look at. `make bench` in a checkout measures more, with separate processes.
    """
    results = run(_bench(calls, concurrency, size, rounds, url=url), fast=True)
    _tell(results, concurrency=concurrency, size=size, as_json=as_json)


def _tell(results: tuple[Measured, Measured], *, concurrency: int, size: int, as_json: bool) -> None:
    from reach.cli import output

    bare, governed = results
    ratio = governed.rate / bare.rate if bare.rate else 0.0
    if as_json:
        told = {"concurrency": concurrency, "size": size, "ratio": round(ratio, 3)}
        output.print_json({**told, "bare": bare.to_map(), "reach": governed.to_map()})
        return
    rows = [
        (
            one.name,
            f"{one.rate:,.0f}",
            f"{one.percentile_ms(50):.2f}",
            f"{one.percentile_ms(99):.2f}",
            str(one.failed),
        )
        for one in results
    ]
    output.show(output.grid(("way", "calls/s#", "p50 ms#", "p99 ms#", "failed#"), rows))
    output.line(
        f"\nA call through Reach runs at {ratio:.2f} of a bare request ({concurrency} at a time, {size} bytes)."
    )


async def _bench(
    calls: int, concurrency: int, size: int, rounds: int, *, url: str | None
) -> tuple[Measured, Measured]:
    payload = {"text": "x" * size}
    async with AsyncExitStack() as stack:
        settings_of = await stack.enter_async_context(_server(url))
        ways = (
            (Measured("nats-py request"), await stack.enter_async_context(_bare(settings_of, payload))),
            (Measured("reach call"), await stack.enter_async_context(_governed(settings_of, payload))),
        )
        for _, send in ways:
            await _drive(Measured("warm-up"), send, calls=_WARM_UP, concurrency=concurrency)
        share, rest = divmod(calls, rounds)
        for turn in range(rounds):
            for measured, send in ways:
                await _drive(measured, send, calls=share + (turn < rest), concurrency=concurrency)
    return ways[0][0], ways[1][0]


async def _drive(
    measured: Measured, send: Callable[[], Awaitable[bool]], *, calls: int, concurrency: int
) -> None:
    """Make `calls` calls, `concurrency` at a time."""
    left = calls

    async def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            began = time.perf_counter()
            ok = await send()
            measured.latencies_s.append(time.perf_counter() - began)
            measured.failed += not ok

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, calls)):
            group.create_task(work())
    measured.seconds += time.perf_counter() - began


@asynccontextmanager
async def _server(url: str | None) -> AsyncIterator[Callable[[Role], Settings]]:
    """Find a server, or run one of our own meanwhile; gives the settings of a role there."""
    from reach.bus.embedded import ANY_PORT, EmbeddedServer
    from reach.bus.keys import Role
    from reach.bus.settings import resolve
    from reach.errors import ConfigError

    try:
        resolve(url, role=Role.OPERATOR)
    except ConfigError:
        if url:
            raise
    else:
        yield lambda role: resolve(url, role=role)
        return
    with tempfile.TemporaryDirectory(prefix="reach-bench-") as folder:
        home = Path(folder, "state")
        server = await asyncio.to_thread(EmbeddedServer.start, home, port=ANY_PORT)
        try:
            env = {"REACH_HOME": str(home)}
            yield lambda role: resolve(None, role=role, env=env)
        finally:
            await asyncio.to_thread(server.stop)


@asynccontextmanager
async def _bare(
    settings_of: Callable[[Role], Settings], payload: dict[str, Any]
) -> AsyncIterator[Callable[[], Awaitable[bool]]]:
    """What nats-py itself does: `request()` to a subscriber that responds."""
    import nats

    from reach.bus.keys import Role
    from reach.wire import codec, subjects

    agent = await nats.connect(**settings_of(Role.AGENT).to_nats_options())
    caller = await nats.connect(**settings_of(Role.CALLER).to_nats_options())

    async def respond(message: Any) -> None:
        await message.respond(message.data)

    await agent.subscribe(_BARE_SUBJECT, queue=subjects.QUEUE, cb=respond)
    await agent.flush()
    body = codec.pack(payload)

    async def send() -> bool:
        return bool((await caller.request(_BARE_SUBJECT, body, timeout=30)).data)

    try:
        yield send
    finally:
        await caller.close()
        await agent.close()


@asynccontextmanager
async def _governed(
    settings_of: Callable[[Role], Settings], payload: dict[str, Any]
) -> AsyncIterator[Callable[[], Awaitable[bool]]]:
    """The same through an agent and a bus."""
    from reach.bus.keys import Role
    from reach.call.client import connect
    from reach.runtime.agent import Agent

    agent = Agent("reach-bench")

    @agent.capability(_CAPABILITY, idempotent=True, max_concurrency=20_000)
    async def echo(params: dict[str, Any]) -> dict[str, Any]:
        return params

    ready, stop = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(
            agent.serve(settings=settings_of(Role.AGENT), stop=stop, ready=lambda _: ready.set())
        )
        await ready.wait()
        async with connect(settings=settings_of(Role.OPERATOR), role=Role.OPERATOR) as bus:

            async def send() -> bool:
                return (await bus.request(_CAPABILITY, payload)).ok

            yield send
        stop.set()
