"""What choosing costs, counted: steps of the interpreter, which no other process can make more of."""

import random
import sys
from types import FrameType
from typing import Any

import pytest

from bench.choosing import CASES, Case, caller_of, cost_us

CALLS = 100
FEW, MANY = 10, 2_000


def steps_of(case: Case, instances: int) -> float:
    """Give the interpreter's steps of one call, the average of some that find everything ready."""
    random.seed(5)
    caller, call = caller_of(case, instances)
    count = 0

    def step(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "opcode"
        return step

    def enter(frame: FrameType, _event: str, _argument: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return step

    caller.choose(call)
    plan = caller.steering.plan_for(call)
    for crowd in filter(None, plan.crowds.values() if plan is not None else ()):
        for name in crowd.parts:
            crowd.way(name)  # Made at first use, one after the other.
    before = sys.gettrace()
    sys.settrace(enter)
    try:
        for _ in range(CALLS):
            route = caller.choose(call)
            if route.lane is not None:
                caller.lanes.leave(route.lane, route.instance)
    finally:
        sys.settrace(before)
    return count / CALLS


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_choosing_takes_the_same_steps_for_few_and_for_many(case: Case) -> None:
    """SPEED-3: the number of instances is nothing that a call looks at."""
    few, many = steps_of(case, FEW), steps_of(case, MANY)
    assert many <= few * 1.1


def test_the_clock_is_read() -> None:
    """`python -m bench.choosing` measures each case in microseconds."""
    assert cost_us(CASES[0], FEW, batches=3) > 0
