"""Never twice, with real processes: racing callers, executors that die wherever they can, owners that hang."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from reach.call.client import Bus
from reach.faults import Executed, Reason
from reach.ids import new_id
from reach.runtime.keeper import TAKEN_OVER
from reach.wire.reply import Reply
from tests.chaos.stress_rig import Peer, Rig, eventually, tell

AGENT = Path(__file__).with_name("idempotency_agent.py")
CALLER = Path(__file__).with_name("idempotency_caller.py")
PLACES = ("before_entry", "before_start", "middle", "after_effect", "after_stored")


async def started(rig: Rig, program: Path, *envs: dict[str, str]) -> list[Peer]:
    """Start programs at once."""
    peers = [await rig._start(program, **env) for env in envs]
    await asyncio.gather(*(peer.ready() for peer in peers))
    return peers


def paid(rig: Rig) -> Counter[str]:
    """How often each number was paid, by the log that outlives every process."""
    return Counter(rig.effects.path.read_text("utf-8").split())


async def test_a_hundred_racing_calls_are_one(rig: Rig) -> None:
    """IDEM-1, IDEM-2: 100 calls of one key from 5 processes at 3 instances: one effect, 100 equal replies."""
    await started(rig, AGENT, *({"AGENT": name} for name in ("one", "two", "three")))
    callers = await started(rig, CALLER, *({} for _ in range(5)))
    for size in (0, 2 * 1024 * 1024):
        number = f"R-{size}"
        race = {"capability": "pay.write", "given": {"number": number, "wait_s": 0.3, "size": size}}
        answers = await asyncio.gather(
            *(caller.ask("race", **race, key=number, calls=20 if not size else 2) for caller in callers)
        )
        told = [tuple(map(str, one)) for answer in answers for one in answer["told"]]
        assert 1 == paid(rig)[number]
        assert 1 == len({(reason, data) for reason, data, _, _ in told})
        assert {"None"} == {reason for reason, *_ in told}
        assert {"False": 1, "True": len(told) - 1} == Counter(duplicate for _, _, duplicate, _ in told)
        assert {"True"} == {durable for *_, durable in told}


def expected(capability: str, where: str) -> tuple[Reason | None, int]:
    """What a duplicate is told of a call whose executor died there, and how often it was done in the end."""
    if where == "before_entry":
        return None, 1
    if where == "after_stored":
        return None, 1
    if capability == "pay.write":
        return Reason.OUTCOME_UNKNOWN, 1 if where == "after_effect" else 0
    return None, 2 if where == "after_effect" else 1


async def served(bus: Bus) -> None:
    """Wait until the instance that is well serves again."""
    async with asyncio.timeout(20):
        while True:
            reply = await bus.request("pay.put", {"number": new_id()}, retry=False, target="survivor")
            if reply.ok:
                return
            await asyncio.sleep(0.1)


async def duplicates(bus: Bus, capability: str, number: str) -> list[Reply]:
    """Ask again, three times at once."""
    calls = [
        bus.request(capability, {"number": number}, idempotency_key=number, timeout_s=20, target="survivor")
        for _ in range(3)
    ]
    return await asyncio.gather(*calls)


@pytest.mark.parametrize("capability", ["pay.write", "pay.put"])
async def test_an_executor_that_dies(own_rig: Rig, capability: str) -> None:
    """IDEM-1, IDEM-3, case 31: wherever an executor is killed, a write is done once, also after a server restart."""
    await asyncio.to_thread(own_rig.system.provision)
    victims = [{"AGENT": where.replace("_", "-"), "DIE": where} for where in PLACES]
    await started(own_rig, AGENT, {"AGENT": "survivor"}, *victims)
    bus = await own_rig.bus()
    await bus.cards.instances(capability)
    firsts = await asyncio.gather(
        *(
            bus.request(
                capability,
                {"number": where},
                idempotency_key=where,
                timeout_s=2,
                retry=False,
                target=where.replace("_", "-"),
            )
            for where in PLACES
        )
    )
    assert [False] * 5 == [reply.ok for reply in firsts]
    for restarted in (False, True):
        if restarted:
            await asyncio.to_thread(own_rig.system.restart)
            await served(bus)
        for where, told in zip(
            PLACES,
            await asyncio.gather(*(duplicates(bus, capability, where) for where in PLACES)),
            strict=True,
        ):
            reason, times = expected(capability, where)
            reasons = [None if reply.error is None else reply.error.reason for reply in told]
            assert [reason] * 3 == reasons, (where, restarted)
            assert times == paid(own_rig)[where], (where, restarted)
            if reason is None and (restarted or where == "after_stored"):
                assert [True] * 3 == [reply.duplicate for reply in told], (where, restarted)
    tell(f"{capability}: {dict(paid(own_rig))}")


async def frozen(rig: Rig, capability: str, number: str) -> tuple[Peer, Bus, asyncio.Task[Reply]]:
    """Have a call under way at an instance that is then stopped, beside one that is well."""
    hung, _ = await started(rig, AGENT, {"AGENT": "hung", "LEASE_S": "3"}, {"AGENT": "survivor"})
    bus = await rig.bus()
    await bus.cards.instances(capability)
    given: dict[str, Any] = {"number": number, "wait_s": 0.5}
    first = asyncio.create_task(
        bus.request(capability, given, idempotency_key=number, timeout_s=30, retry=False, target="hung")
    )
    await eventually(lambda: paid(rig)[number])
    hung.freeze()
    early = await ask(bus, capability, number, timeout_s=1.0)
    assert early.error is not None
    assert (Reason.IN_PROGRESS, Executed.MAYBE) == (early.error.reason, early.error.executed)
    assert hung.name in early.error.message
    return hung, bus, first


async def ask(bus: Bus, capability: str, number: str, *, timeout_s: float = 15.0) -> Reply:
    """Ask the other instance for the same."""
    return await bus.request(
        capability,
        {"number": number, "wait_s": 0.5},
        idempotency_key=number,
        timeout_s=timeout_s,
        retry=False,
        target="survivor",
    )


async def test_a_write_at_an_owner_that_hangs(rig: Rig) -> None:
    """IDEM-3: while its lease runs a hung owner has the call; then nobody knows; when it wakes its word is believed."""
    number = f"hung-{new_id()}"
    hung, bus, first = await frozen(rig, "pay.write", number)
    unknown = await ask(bus, "pay.write", number)
    assert unknown.error is not None
    assert (Reason.OUTCOME_UNKNOWN, "INSTANCE_GONE") == (unknown.error.reason, unknown.error.cause)
    hung.thaw()
    late = await first
    assert (True, True) == (late.ok, late.durable)
    again = await ask(bus, "pay.write", number)
    assert (late.data, True) == (again.unwrap(), again.duplicate)
    assert 1 == paid(rig)[number]


async def test_a_read_at_an_owner_that_hangs(rig: Rig) -> None:
    """IDEM-3: what is idempotent is taken over when the lease is over; who wakes overwrites nothing, and says so."""
    number = f"hung-{new_id()}"
    hung, bus, first = await frozen(rig, "pay.put", number)
    over = await ask(bus, "pay.put", number)
    assert "survivor" == over.unwrap()["by"]
    hung.thaw()
    late = await first
    assert ("hung", False, TAKEN_OVER) == (late.unwrap()["by"], late.durable, late.notice)
    again = await ask(bus, "pay.put", number)
    assert (over.data, True) == (again.unwrap(), again.duplicate)
    assert 2 == paid(rig)[number]
