"""SPEED-1 with live routing: the benchmark's own stage, with a supervisor that leads, and callers that tell and follow.

The ratio is taken in one run, turn by turn against a bare request of nats-py, so a busy machine slows both.
"""

import asyncio
import subprocess
from pathlib import Path
from time import monotonic, sleep

import pytest

from bench.contenders import NATS, REACH
from bench.measure import Plan, failures, measure, summary
from bench.report import FLOORS
from bench.stage import Stage, environment, open_stage
from reach.bus.connection import Connection
from reach.bus.keys import Role
from reach.bus.settings import resolve
from reach.errors import ReachError
from reach.runtime.platform import READY, platform_command
from reach.wire import codec, subjects
from reach.wire.registration import RouteAnswer, RouteVerb, read_answer
from reach.wire.route import RouteEntry
from tests.chaos.supervisor_rig import ACTORS, tell


async def _served(stage: Stage) -> list[RouteEntry]:
    """What the leader says of whatever is served."""
    settings = resolve(role=Role.OPERATOR, env=environment(stage.home.parent))
    operator = await Connection.open(settings, role=Role.OPERATOR.value)
    try:
        rows = await _ask(operator, RouteVerb.INSTANCES)
        names = sorted({name for row in rows.instances for name in row.tickets})
        shown = [await _ask(operator, RouteVerb.SHOW, capability=name) for name in names]
        return [one.after for one in shown if one.after is not None]
    finally:
        await operator.close()


async def _ask(operator: Connection, verb: RouteVerb, **fields: str) -> RouteAnswer:
    data = codec.pack({"by": "a test", **fields})
    return read_answer(await operator.request(subjects.route(verb), data, timeout_s=2), RouteAnswer)


def _told(stage: Stage, *, within_s: float, calls: int) -> list[RouteEntry]:
    """Wait until the leader knows of an agent, and of so many calls."""
    until = monotonic() + within_s
    while True:
        try:
            found = asyncio.run(_served(stage))
        except ReachError:
            found = []
        if found and sum(lane.figures.calls for entry in found for lane in entry.lanes) >= calls:
            return found
        assert monotonic() < until, found
        sleep(0.2)


@pytest.mark.chaos_long
@pytest.mark.timeout(300)
def test_governed_calls_are_as_fast_with_live_routing(tmp_path: Path) -> None:
    """SPEED-1: with a leader and its table ≥ 0.75 of bare requests at 64 calls at a time, ≥ 0.85 at 256 and 1 000."""
    with open_stage([NATS.name, REACH.name]) as stage, (tmp_path / "platform.log").open("wb") as log:
        platform = subprocess.Popen(
            platform_command(stage.home, actors=ACTORS),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment(stage.home.parent),
        )
        assert platform.stdout is not None
        try:
            assert platform.stdout.readline().decode().startswith(READY)
            _told(stage, within_s=10, calls=0)
            plan = Plan(concurrencies=(64, 256, 1000), seconds=0.8, warm_s=0.4, rounds=2, runs=3)
            cells = measure(plan, stage, lambda _: None)
            made = sum(cell.outcome.made for cell in cells if cell.contender == REACH.name)
            entries = _told(stage, within_s=40, calls=made // 2)
        finally:
            platform.terminate()
            platform.wait(10)
            platform.stdout.close()
    lines = [line for line in summary(cells) if line.contender == REACH.name]
    counted = sum(lane.figures.calls for entry in entries for lane in entry.lanes)
    for line in lines:
        tell(f"{line.concurrency} at a time: {line.rate:,.0f}/s, {line.ratio:.2f} of bare requests")
    tell(f"{made} governed calls, {counted} of them in the leader's figures by then")
    assert [] == failures(cells)
    for line in lines:
        assert line.ratio is not None
        assert line.ratio >= FLOORS[line.concurrency]
