"""Tasks by state, as numbers (SEE-2)."""

from pathlib import Path
from typing import Any

import reach
from actors.tasks.figures import Figures
from reach.observe.exposition import exposed
from reach.observe.metrics import PROCESS, Metrics
from tests.actors.tasks_rig import looked_after
from tests.runtime.fleet import Fleet, eventually


def lines(metrics: Metrics) -> list[str]:
    """The samples of tasks by state."""
    return [line for line in exposed(metrics).decode().splitlines() if line.startswith("reach_tasks{")]


def test_what_is_gone_is_shown_as_none() -> None:
    """SEE-2: a state that no task is in any more is shown as 0, also by a fresh start of the actor."""
    metrics = Metrics()
    Figures(metrics).show({"a.b": {"queued": 2, "running": 1}})
    Figures(metrics).show({"a.b": {"queued": 1}, "c.d": {"dead": 3}})
    assert [
        'reach_tasks{capability="a.b",state="queued"} 1.0',
        'reach_tasks{capability="a.b",state="running"} 0.0',
        'reach_tasks{capability="c.d",state="dead"} 3.0',
    ] == sorted(lines(metrics))


async def test_the_platform_shows_tasks_by_state(system: Any, tmp_path: Path) -> None:
    """SEE-2: the platform's process shows how many tasks stand where."""
    fleet = Fleet(system, tmp_path)
    try:
        bus = await fleet.connect()
        async with looked_after(system):
            await bus.submit("shown.parked", {})
            unwanted = await bus.submit("shown.parked", {})
            assert reach.TaskState.CANCELLED == await unwanted.cancel()
            wanted = {
                'reach_tasks{capability="shown.parked",state="queued"} 1.0',
                'reach_tasks{capability="shown.parked",state="cancelled"} 1.0',
            }
            await eventually(lambda: wanted <= set(lines(PROCESS)))
    finally:
        await fleet.close()
