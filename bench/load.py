"""The load: a fixed number of workers that call, check the answer, and call again.

A closed loop measures what a caller with so many calls under way gets. Each reply is checked, because a fast
wrong answer is worth nothing; the cost of checking is part of the call for every contender.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

from reach.wire import codec

PAYLOAD_BYTES = 200
CALL_TIMEOUT_S = 20.0
"""Far beyond any latency here: a call that takes longer is a failure of the benchmark."""

_ENDS_AFTER_FAILURES = 20

Call = Callable[[], Awaitable[None]]
"""Makes one call and checks its answer. Raises whatever the library raises, or `WrongReply`."""


def payload_of(size: int = PAYLOAD_BYTES) -> dict[str, str]:
    """Give parameters that msgpack packs into exactly `size` bytes (40 to 250)."""
    empty = len(codec.pack({"text": "x" * 32})) - 32
    return {"text": "x" * (size - empty)}


class WrongReply(Exception):
    """An answer came, and is not what was asked for."""


@dataclass(slots=True)
class Outcome:
    """What one contender did in one cell.

    Attributes:
        calls: Calls that ended within the measured time.
        seconds: The measured time.
        made: All calls, those before and after the measured time included.
        failed: Calls that failed or were answered wrongly, of all.
        failure: The first of them, in words.
        p50_us: Median latency in microseconds.
        p99_us: 99th percentile.
    """

    calls: int
    seconds: float
    made: int
    failed: int
    failure: str
    p50_us: float
    p99_us: float

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self.calls / self.seconds if self.seconds else 0.0

    def to_map(self) -> dict[str, Any]:
        """Give it for the orchestrator."""
        return asdict(self)


@dataclass(slots=True)
class _Run:
    counting: bool = False
    over: bool = False
    made: int = 0
    failed: int = 0
    failure: str = ""
    latencies_s: list[float] = field(default_factory=list)


def percentile_us(latencies_s: Sequence[float], percent: float) -> float:
    """Give a percentile of sorted latencies by nearest rank, in microseconds; 0 of none."""
    if not latencies_s:
        return 0.0
    return 1e6 * latencies_s[min(len(latencies_s) - 1, int(len(latencies_s) * percent / 100))]


async def drive(call: Call, *, concurrency: int, warm_s: float, seconds: float) -> Outcome:
    """Keep `concurrency` calls under way for `warm_s`, then measure for `seconds`.

    Ends early when calls keep failing.
    """
    run = _Run()
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(_work(call, run))
        await asyncio.sleep(warm_s)
        run.counting, began = True, perf_counter()
        await asyncio.sleep(seconds)
        run.counting, took = False, perf_counter() - began
        run.over = True
    latencies = sorted(run.latencies_s)
    return Outcome(
        calls=len(latencies),
        seconds=took,
        made=run.made,
        failed=run.failed,
        failure=run.failure,
        p50_us=percentile_us(latencies, 50),
        p99_us=percentile_us(latencies, 99),
    )


async def _work(call: Call, run: _Run) -> None:
    while not run.over:
        began = perf_counter()
        try:
            await call()
        except Exception as error:  # noqa: BLE001 - each library fails in its own way; all of them are counted
            run.failed += 1
            run.failure = run.failure or f"{type(error).__name__}: {error}"
            if run.failed >= _ENDS_AFTER_FAILURES:
                return
            await asyncio.sleep(0.01)
        else:
            if run.counting:
                run.latencies_s.append(perf_counter() - began)
        run.made += 1
