"""What cache, coalescing and batching save of the calls that agents make (behaviour GUARD-6).

Simulated agents work as agents built on models do: each takes up tasks, and in each it *plans* (its parts ask for the
same context at the same moment), *probes* (looks at several articles), *fans out* (reads the orders of a customer one
by one), *repeats* (asks again what it has asked a moment ago, since the answer is not in what the model sees), asks
for prices, and writes a note. The script is drawn beforehand from a seed. It is then played twice on one server,
against the same agents: once with `cache=False`, where each call is made, and once as it comes. Executions are counted
where they happen; every result of the one is compared with that of the other.

    python -m bench.workload            prints the table; exit code 1 when results differ or too little is saved
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

import reach
from bench.stage import environment, start_server
from bench.world import LEVEL, NOTE, ORDER, ORDERS, PROFILE, QUOTE, World
from reach.bus.keys import Role
from reach.bus.settings import Settings, resolve
from reach.observe.records import NullSink, Recorder
from reach.wire.reply import Failure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LEAST_SAVED: Final = 0.30
"""Behaviour GUARD-6: the share of downstream calls that the three must take off."""

CUSTOMERS: Final = 40
ARTICLES: Final = 30
PARTS: Final = 3
"""Parts of one agent (planner, checker, writer) that begin with the same look at their customer."""

REPEATS: Final = 0.35
"""How often, after a step, a read of this task is asked once more; ours, as are all numbers of the script."""

Call = tuple[str, dict[str, Any]]
Step = list[Call]
"""Calls that are made at the same moment."""


@dataclass(frozen=True, slots=True)
class Row:
    """One capability: how often it was asked, and how often it was done, without and with the three."""

    capability: str
    asked: int
    without: int
    saving: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What playing the script twice has shown.

    `hits`, `shared` and `batched` are the calls that the cache, another call under way, and a batch answered.
    """

    agents: int
    tasks: int
    seed: int
    rows: list[Row]
    hits: int
    shared: int
    batched: int
    different: int
    failed: int

    @property
    def without(self) -> int:
        """Executions where every call is made."""
        return sum(row.without for row in self.rows)

    @property
    def saving(self) -> int:
        """Executions with the three."""
        return sum(row.saving for row in self.rows)

    @property
    def saved(self) -> float:
        """The share of downstream calls that need not happen."""
        return 1 - self.saving / self.without if self.without else 0.0

    @property
    def kept(self) -> bool:
        """Whether the promise is: enough saved, and nobody was told anything else."""
        return not self.different and not self.failed and self.saved >= LEAST_SAVED


# ---------------------------------------------------------------------------------------------- the script


def script(seed: int, *, agents: int, tasks: int) -> list[list[list[Step]]]:
    """Draw what each agent does: its tasks, each a list of steps. The same seed gives the same."""
    return [
        [_task(random.Random(f"{seed}/{agent}/{task}")) for task in range(tasks)] for agent in range(agents)
    ]


def _task(dice: random.Random) -> list[Step]:
    customer = dice.randrange(CUSTOMERS)
    seen: list[Call] = []
    steps: list[Step] = []

    def do(step: Step) -> None:
        steps.append(step)
        seen.extend(step)
        while dice.random() < REPEATS:
            steps.append([dice.choice(seen)])

    do([(PROFILE, {"customer": customer})] * PARTS)
    do([(LEVEL, {"article": _article(dice)}) for _ in range(dice.randint(2, 4))])
    first = customer * 100 + dice.randrange(20)
    do([(ORDER, {"order_id": first + at}) for at in range(dice.randint(4, 10))])
    do(
        [
            (QUOTE, {"article": _article(dice), "pieces": dice.randint(1, 5)})
            for _ in range(dice.randint(1, 2))
        ]
    )
    steps.append([(NOTE, {"customer": customer, "text": f"looked at {first}"})])
    return steps


def _article(dice: random.Random) -> str:
    """Give an article, the first ones more often: everybody asks for what sells."""
    return f"article-{min(int(dice.expovariate(0.15)), ARTICLES - 1)}"


# ---------------------------------------------------------------------------------------------- playing it


async def play(settings: dict[Role, Settings], *, seed: int, agents: int, tasks: int) -> Outcome:
    """Play the script without and with the three, on the server of `settings`."""
    acts = script(seed, agents=agents, tasks=tasks)
    world = World()
    async with AsyncExitStack() as stack:
        for agent in world.agents:
            await stack.enter_async_context(_serving(agent, settings[Role.AGENT]))
        bus = await stack.enter_async_context(
            reach.connect(settings=settings[Role.CALLER], recorder=Recorder(NullSink()))
        )
        await bus.cards.instances(NOTE)
        plain = await _all_of(bus.with_options(cache=False), acts)
        without = Counter(world.done)
        world.done.clear()
        thrifty = await _all_of(bus, acts)
        asked = Counter(name for act in acts for task in act for step in task for name, _ in step)
        counted = bus.metrics
        return Outcome(
            agents=agents,
            tasks=tasks,
            seed=seed,
            rows=[
                Row(name, asked[name], without[name], world.done[name])
                for name in (PROFILE, LEVEL, ORDER, ORDERS, QUOTE, NOTE)
            ],
            hits=int(sum(counted.cache.value(name, "hit") for name in asked)),
            shared=int(sum(counted.coalesced.value(name) for name in asked)),
            batched=int(sum(counted.batched.value(name) for name in asked)),
            different=sum(one != other for one, other in zip(plain, thrifty, strict=True)),
            failed=sum(isinstance(one, Failure) for one in (*plain, *thrifty)),
        )


@asynccontextmanager
async def _serving(agent: reach.Agent, settings: Settings) -> "AsyncIterator[None]":
    stop = asyncio.Event()
    ready = asyncio.Event()
    serving = asyncio.create_task(
        agent.serve(
            settings=settings,
            stop=stop,
            ready=lambda _instance: ready.set(),
            recorder=Recorder(NullSink()),
        )
    )
    try:
        await ready.wait()
        yield
    finally:
        stop.set()
        await serving


async def _all_of(bus: reach.Bus, acts: Sequence[Sequence[Sequence[Step]]]) -> list[Any]:
    """Let all agents work at once; every result in the order of the script, or its failure."""
    results = await asyncio.gather(*(_one_of(bus, number, act) for number, act in enumerate(acts)))
    return [result for of_one in results for result in of_one]


async def _one_of(bus: reach.Bus, number: int, tasks: Sequence[Sequence[Step]]) -> list[Any]:
    results: list[Any] = []
    for at, task in enumerate(tasks):
        with reach.context(agent_id=f"worker-{number}", session_id=f"session-{number}-{at}"):
            for step in task:
                replies = await asyncio.gather(*(bus.request(name, params) for name, params in step))
                results += [reply.data if reply.ok else reply.error for reply in replies]
    return results


def measure_workload(*, seed: int, agents: int, tasks: int) -> Outcome:
    """Play it on a server of its own, which ends with it."""
    with tempfile.TemporaryDirectory(prefix="reach-workload-") as name:
        folder = Path(name)
        server = start_server(folder)
        try:
            env = environment(folder)
            settings = {role: resolve(role=role, env=env) for role in (Role.AGENT, Role.CALLER)}
            return asyncio.run(play(settings, seed=seed, agents=agents, tasks=tasks))
        finally:
            server.stop()


# ---------------------------------------------------------------------------------------------- telling


COLUMNS: Final = ("capability", "asked", "done: each call", "done: saving", "saved")


def rows_of(outcome: Outcome) -> list[tuple[str, ...]]:
    """Give the rows of the table, the sum last."""
    rows = [
        *outcome.rows,
        Row("all", sum(row.asked for row in outcome.rows), outcome.without, outcome.saving),
    ]
    return [
        (
            row.capability,
            f"{row.asked:,}",
            f"{row.without:,}",
            f"{row.saving:,}",
            f"{1 - row.saving / row.without:.0%}" if row.without else "",
        )
        for row in rows
    ]


def summary(outcome: Outcome) -> str:
    """Say it in one sentence."""
    if outcome.failed:
        return f"{outcome.failed} calls failed."
    if outcome.different:
        return f"{outcome.different} results differ."
    return (
        f"{outcome.saved:.0%} fewer downstream calls, all results identical: {outcome.hits:,} answers were given "
        f"again, {outcome.shared:,} calls shared one under way, {outcome.batched:,} went in batches."
    )


def print_workload(outcome: Outcome, console: Console) -> None:
    """Print the table and the sentence."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "capability" else "right", no_wrap=True)
    for row in rows_of(outcome):
        table.add_row(*row, style="bold" if row[0] == "all" else "")
    console.print(f"\n{outcome.agents} agents, {outcome.tasks} tasks each, seed {outcome.seed}", style="bold")
    console.print(table)
    console.print(f"{'✔' if outcome.kept else '✘'} GUARD-6, at least {LEAST_SAVED:.0%}: {summary(outcome)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Play it and print what it saved; give the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.workload", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--agents", type=int, default=12, help="simulated agents that work at once (1 to 100)"
    )
    parser.add_argument("--tasks", type=int, default=8, help="tasks of each, one after the other (1 to 100)")
    parser.add_argument("--seed", type=int, default=1, help="another one is another script")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    given = parser.parse_args(arguments)
    if not (1 <= given.agents <= 100 and 1 <= given.tasks <= 100):
        parser.error("agents and tasks are 1 to 100")
    outcome = measure_workload(seed=given.seed, agents=given.agents, tasks=given.tasks)
    console = Console(highlight=False, soft_wrap=True)
    if given.json:
        console.print_json(json.dumps({**asdict(outcome), "saved": outcome.saved, "kept": outcome.kept}))
    else:
        print_workload(outcome, console)
    return 0 if outcome.kept else 1


if __name__ == "__main__":
    sys.exit(main())
