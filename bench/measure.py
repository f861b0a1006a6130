"""Taking turns: A, B, A, B at each load, run by run, so that what the machine does meanwhile falls on all alike.

A *cell* is one turn of one contender at one load. Rates are compared within a run only; the figure that counts
is the median of the runs' ratios.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Final

from bench.contenders import NATS
from bench.load import Outcome
from bench.process import cpu_seconds
from bench.stage import Pair, Stage

ALONE: Final = 1
"""The load at which latency is compared: one call at a time."""

_GRACE_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long and how often.

    Attributes:
        concurrencies: Calls under way at once; one cell each.
        seconds: Measured time of a cell.
        warm_s: Load before it, which does not count.
        rounds: Turns of each contender in a run.
        runs: How often all of it is done.
    """

    concurrencies: tuple[int, ...] = (ALONE, 64, 256, 1000)
    seconds: float = 1.0
    warm_s: float = 0.25
    rounds: int = 4
    runs: int = 3


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor time of one call, in microseconds, in each of the three processes it passes."""

    caller_us: float
    server_us: float
    agent_us: float


@dataclass(frozen=True, slots=True)
class Cell:
    """One turn."""

    run: int
    concurrency: int
    contender: str
    outcome: Outcome
    cost: Cost | None


@dataclass(frozen=True, slots=True)
class Line:
    """What all turns of one contender at one load come to: medians of the runs.

    `ratio` and `added_p50_us` are against bare nats-py in the same run; None where that was not measured.
    """

    contender: str
    concurrency: int
    rate: float
    ratio: float | None
    p50_us: float
    p99_us: float
    added_p50_us: float | None
    cost: Cost | None
    made: int
    failed: int


def measure(plan: Plan, stage: Stage, tell: Callable[[str], None]) -> list[Cell]:
    """Let everybody take turns; `tell` hears a line for each load of each run."""
    cells: list[Cell] = []
    for run in range(1, plan.runs + 1):
        for concurrency in plan.concurrencies:
            turns = [
                _turn(plan, stage, pair, run=run, concurrency=concurrency)
                for _ in range(plan.rounds)
                for pair in stage.pairs.values()
            ]
            cells += turns
            rates = ", ".join(f"{line.contender} {line.rate:,.0f}/s" for line in summary(turns))
            tell(f"run {run} of {plan.runs}, {concurrency:>5,} at a time: {rates}")
    return cells


def _turn(plan: Plan, stage: Stage, pair: Pair, *, run: int, concurrency: int) -> Cell:
    order = {"do": "run", "concurrency": concurrency, "warm_s": plan.warm_s, "seconds": plan.seconds}
    pids = (pair.caller.pid, stage.server.pid, pair.agent.pid)
    before = [cpu_seconds(pid) for pid in pids]
    answer = pair.caller.ask(order, timeout_s=plan.warm_s + plan.seconds + _GRACE_S)
    after = [cpu_seconds(pid) for pid in pids]
    outcome = Outcome(**answer)
    return Cell(run, concurrency, pair.name, outcome, _cost(before, after, calls=outcome.made))


def _cost(before: Sequence[float | None], after: Sequence[float | None], *, calls: int) -> Cost | None:
    used: list[float] = []
    for start, end in zip(before, after, strict=True):
        if start is None or end is None or not calls:
            return None
        used.append(1e6 * (end - start) / calls)
    return Cost(*used)


# ---------------------------------------------------------------------------------------------- figures


def summary(cells: Iterable[Cell]) -> list[Line]:
    """Give one line for each load and contender, in the order in which they came."""
    by_place: dict[tuple[int, str], list[Cell]] = {}
    for cell in cells:
        by_place.setdefault((cell.concurrency, cell.contender), []).append(cell)
    return [
        _line(turns, by_place.get((concurrency, NATS.name), []))
        for (concurrency, _), turns in sorted(by_place.items(), key=lambda item: item[0][0])
    ]


def _line(turns: list[Cell], bare: list[Cell]) -> Line:
    rates, p50s = _by_run(turns, "rate"), _by_run(turns, "p50_us")
    bare_rates, bare_p50s = _by_run(bare, "rate"), _by_run(bare, "p50_us")
    shared = rates.keys() & bare_rates.keys()
    costs = [cell.cost for cell in turns if cell.cost is not None]
    return Line(
        contender=turns[0].contender,
        concurrency=turns[0].concurrency,
        rate=median(rates.values()),
        ratio=median(rates[run] / bare_rates[run] for run in shared if bare_rates[run]) if shared else None,
        p50_us=median(p50s.values()),
        p99_us=median(_by_run(turns, "p99_us").values()),
        added_p50_us=median(p50s[run] - bare_p50s[run] for run in shared) if shared else None,
        cost=Cost(
            median(cost.caller_us for cost in costs),
            median(cost.server_us for cost in costs),
            median(cost.agent_us for cost in costs),
        )
        if costs
        else None,
        made=sum(cell.outcome.made for cell in turns),
        failed=sum(cell.outcome.failed for cell in turns),
    )


def _by_run(cells: Iterable[Cell], figure: str) -> dict[int, float]:
    """Give the mean of a figure over each run's turns."""
    found: dict[int, list[float]] = {}
    for cell in cells:
        found.setdefault(cell.run, []).append(getattr(cell.outcome, figure))
    return {run: fmean(values) for run, values in found.items()}


def failures(cells: Iterable[Cell]) -> list[str]:
    """Give what went wrong, in words; empty when every reply was right."""
    return [
        f"{cell.contender} at {cell.concurrency}: {cell.outcome.failed} of {cell.outcome.made}: {cell.outcome.failure}"
        for cell in cells
        if cell.outcome.failed
    ]


# --------------------------------------------------------------------------------------------- profiles


@dataclass(frozen=True, slots=True)
class Profile:
    """Where one side's processor time goes, in microseconds a call."""

    contender: str
    side: str
    concurrency: int
    us_per_call: float
    samples: int
    rooms: dict[str, float]
    functions: dict[str, float]


def profile(pair: Pair, *, concurrency: int, seconds: float) -> tuple[list[Profile], int]:
    """Sample both sides under load (none where processor time is not known); also how many calls were made."""
    sides = {"caller": pair.caller, "agent": pair.agent}
    before = {side: cpu_seconds(peer.pid) for side, peer in sides.items()}
    for peer in sides.values():
        peer.ask({"do": "watch"}, timeout_s=_GRACE_S)
    order = {"do": "run", "concurrency": concurrency, "warm_s": 0.1, "seconds": seconds}
    outcome = Outcome(**pair.caller.ask(order, timeout_s=seconds + _GRACE_S))
    found: list[Profile] = []
    for side, peer in sides.items():
        seen: dict[str, Any] = peer.ask({"do": "watched"}, timeout_s=_GRACE_S)
        after, start = cpu_seconds(peer.pid), before[side]
        if after is None or start is None or not seen["samples"] or not outcome.made:
            continue
        us = 1e6 * (after - start) / outcome.made
        share = us / seen["samples"]
        found.append(
            Profile(
                contender=pair.name,
                side=side,
                concurrency=concurrency,
                us_per_call=us,
                samples=seen["samples"],
                rooms={room: count * share for room, count in seen["rooms"].items()},
                functions={name: count * share for name, count in seen["functions"].items()},
            )
        )
    return found, outcome.made
