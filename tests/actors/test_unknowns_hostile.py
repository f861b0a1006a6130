"""Entries and events that nobody sensible sends: the list of unknown outcomes goes on with the next."""

import asyncio
from typing import Any

from reach.bus.keys import Role
from reach.wire import codec, subjects
from tests.actors.unknowns_rig import listed, rows

NUMBERS: tuple[Any, ...] = (float("nan"), float("inf"), -1, 1e308, 2**63 - 1, 2**63, 2**64 - 1, "x", [], {})
FIELDS = ("at", "began_at", "kind", "capability", "tenant", "parameters", "attempts", "store_key", "instance")


async def test_what_cannot_be_an_entry_does_not_hold_up_the_next(own_system: Any) -> None:
    """Absurd fields, bytes that are no message, and tasks of agents with no name: also at the next start."""
    await asyncio.to_thread(own_system.provision)
    async with own_system.connection(Role.CALLER) as caller, own_system.connection(Role.AGENT) as agent:
        for number, (field, value) in enumerate((field, value) for field in FIELDS for value in NUMBERS):
            entry = {"reach_id": f"rch_{number}", "capability": "odd.call", "at": 1, field: value}
            caller.publish(subjects.unknown("default"), codec.pack(entry))
        for data in (b"", b"null", b"\xc1", b"[" * 100_000):
            caller.publish(subjects.unknown("default"), data)
        error = {"code": "UNKNOWN", "reason": "OUTCOME_UNKNOWN", "executed": "maybe", "message": "lost"}
        for number, value in enumerate(("a b", "*", "x" * 100_000, "")):
            event: dict[str, Any] = {
                "event_id": f"e{number}",
                "task_id": f"t{number}",
                "state": "failed",
                "capability": "odd.task",
            }
            event |= {"agent_id": value, "instance": value, "source": value, "error": error}
            subject = subjects.task_event("failed", "default", f"t{number}", "odd.task")
            agent.publish(subject, codec.pack(event))
        caller.publish(
            subjects.unknown("default"), codec.pack({"reach_id": "rch_good", "capability": "good.call"})
        )
        await caller.flush()
        await agent.flush()
    for _ in range(2):
        async with listed(own_system):
            assert ["rch_good"] == [row.outcome.reach_id for row in await rows(own_system, "good.call")]
