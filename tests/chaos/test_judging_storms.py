"""What a failing lane costs, when its callers come back, and who is served when there is too much (RETRY, GUARD-2)."""

import asyncio
from collections import Counter
from pathlib import Path
from time import monotonic

import pytest

from reach.policy.retry import BACKOFF_BASE_S
from reach.policy.retrybudget import RetryBudget
from tests.chaos.judging_rig import NEVER_OPENS, Lanes, Load, judge_by, reasons, tell
from tests.runtime.fleet import Fleet, eventually


async def test_a_lane_that_fails_everything_gets_at_most_a_fifth_more(fleet: Fleet, tmp_path: Path) -> None:
    """RETRY-6: counted at the far end, a process of its own, with no breaker to help, at 200 calls/s for 4 s."""
    lanes = Lanes(fleet, tmp_path)
    bus = await lanes.serve("one")
    judge_by(bus, NEVER_OPENS)
    lanes.behave("one", share=1.0, fault="refuse")
    load = Load(lambda _: bus.request("lane.work", timeout_s=5), per_s=200)
    await asyncio.sleep(4.0)
    calls = await load.end()
    extra = lanes.begun("one") - len(calls)
    tell(f"{len(calls)} calls that all failed: {extra} more ({extra / len(calls):.1%})")
    assert 0 < extra <= 0.2 * len(calls) + 3  # A budget's floor: three before there are fifteen calls.
    assert {"HANDLER_ERROR"} == reasons(calls).keys()


@pytest.mark.alone
async def test_a_thousand_callers_that_fail_together_do_not_come_back_together(
    fleet: Fleet, tmp_path: Path
) -> None:
    """RETRY-4: their retries start spread over 0.5 to 1.5 of the base; no tenth of that has many more than its share.

    A thousand callers have a thousand budgets; here one budget that allows everything stands for them.
    """
    lanes = Lanes(fleet, tmp_path)
    bus = await lanes.serve("one", places=2000)
    judge_by(bus, NEVER_OPENS)
    bus._core.outbound.lanes.of("lane.work", "one").budget = RetryBudget(share=1.0)
    lanes.behave("one", share=1.0, fault="refuse")
    await asyncio.gather(*(bus.request("lane.work", timeout_s=10) for _ in range(1000)))
    await eventually(lambda: len(fleet.records) == 1000)
    pauses = sorted(
        (second.started_ms - first.started_ms - first.took_ms) / (BACKOFF_BASE_S * 1000)
        for first, second in (record.attempts for record in fleet.records if len(record.attempts) == 2)
    )
    tenths = Counter(int((pause - 0.5) * 10) for pause in pauses)
    tell(
        f"{len(pauses)} retries after {pauses[0]:.2f} to {pauses[-1]:.2f} of the base, "
        f"5 % below {pauses[50]:.2f}, 5 % above {pauses[-50]:.2f}; most in a tenth: {max(tenths.values())}"
    )
    assert 1000 == len(pauses)
    # A timer is never early by more than its grain, and late when the machine is busy.
    assert pauses[0] >= 0.48
    assert pauses[-50] - pauses[50] >= 0.8
    assert max(tenths.values()) <= 200


@pytest.mark.alone
async def test_core_calls_succeed_while_five_times_too_much_is_offered(fleet: Fleet, tmp_path: Path) -> None:
    """GUARD-2: capacity 100/s (10 places of 0.1 s), 500 `offline`/s offered; of 40 `core` ones/s > 99 % succeed."""
    lanes = Lanes(fleet, tmp_path)
    bus = await lanes.serve("one", places=10, queue=20)
    lanes.behave("one", takes_s=0.1)
    await bus.request("lane.work")
    flood = Load(lambda _: bus.request("lane.work", priority="offline", timeout_s=2), per_s=500)
    await asyncio.sleep(1.0)
    core = Load(lambda _: bus.request("lane.work", priority="core", timeout_s=2), per_s=40)
    normal = Load(lambda _: bus.request("lane.work", priority="normal", timeout_s=2), per_s=10)
    began, seen = monotonic(), lanes.begun("one")
    await asyncio.sleep(5.0)
    calls, usual = await core.end(), await normal.end()
    work = (lanes.begun("one") - seen) / (monotonic() - began)
    offline = await flood.end()
    good = sum(one.reply.ok for one in calls) / len(calls)
    slowest_ms = max(one.reply.latency_ms for one in calls)
    tell(f"core: {good:.1%} of {len(calls)}, slowest {slowest_ms:.0f} ms; {dict(reasons(calls))}")
    tell(f"normal: {dict(reasons(usual))}; offline: {dict(reasons(offline))}; {work:.0f} begun a second")
    assert good > 0.99
    assert len(offline) / max(one.began for one in offline) >= 400  # The load was what it was to be.
    assert reasons(offline)["OVERLOADED"] > len(offline) / 2
    # Whose time ended in the queue was told that nothing was done; unknown is only what was at work when it ended.
    assert {"ok", "OVERLOADED", "DEADLINE", "OUTCOME_UNKNOWN"} >= reasons(offline).keys()
    assert reasons(offline)["OUTCOME_UNKNOWN"] <= len(offline) / 100
    # Nothing of it opened a breaker, and nothing is left.
    assert {} == bus._core.outbound.lanes.troubled
    assert (0, 0) == (bus.pending, bus._core.outbound.open_calls)
