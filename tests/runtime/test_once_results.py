"""Results of calls with a key that cannot be passed on: what was done is told alike to the first and to duplicates."""

from typing import Any

import pytest

import reach
from reach.faults import Executed, Reason
from reach.ids import new_id
from tests.runtime.fleet import Fleet

RESULTS: dict[str, Any] = {
    "big": 2**80,
    "deep": {"rows": [1, -(2**70)]},
    "half": "\ud800",
    "object": object(),
    "large": "x" * 2_000_000,
}


@pytest.mark.parametrize("kind", RESULTS)
async def test_what_cannot_be_passed_on_was_done_once(fleet: Fleet, kind: str) -> None:
    """IDEM-5, CALL-7, CALL-8: it is kept that it was done and why nobody has its result, also at another instance."""
    agent, done = reach.Agent("odd"), []

    @agent.capability("odd.do", max_payload_bytes=1_500_000)
    async def do(kind: str) -> Any:
        done.append(kind)
        return RESULTS[kind]

    for _ in range(2):
        await fleet.serve(agent)
    bus = await fleet.connect()
    key = new_id()
    first, *others = [
        await bus.request("odd.do", {"kind": kind}, idempotency_key=key, timeout_s=5) for _ in range(6)
    ]
    alone = await bus.request("odd.do", {"kind": kind})
    assert alone.error is not None
    assert (Reason.BAD_RESULT, Executed.YES) == (alone.error.reason, alone.error.executed)
    assert [alone.error] * 6 == [reply.error for reply in (first, *others)]
    assert [False] + [True] * 5 == [reply.duplicate for reply in (first, *others)]
    assert [kind] * 2 == done
