"""Calls with a key whose instance died and which nobody repeats: found in the store, and listed once."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from actors.unknowns import left, sweep
from reach.bus.framing import Delivery
from reach.bus.idempotency import IdempotencyStore
from reach.bus.keys import Role
from reach.call.client import Bus
from reach.faults import Executed, Reason
from reach.policy.dedupe import explicit_key, implicit_key
from reach.wire import codec, subjects
from reach.wire.idempotency import EntryState, IdempotencyEntry
from reach.wire.reply import Reply
from reach.wire.unknown import UnknownOutcome
from tests.actors.unknowns_rig import ask, listed, rows
from tests.runtime.fleet import Fleet, eventually

AT = 1_700_000_000_000
TURN_S = 0.4
SOON_S = 20.0

LEDGER = """
import asyncio, os
import reach

agent = reach.Agent("ledger")
victim = os.environ["VICTIM"] == "yes"


async def work(name: str, folder: str, seconds: float) -> str:
    with open(folder + "/begun", "a") as file:
        file.write(name + "\\n")
    await asyncio.sleep(seconds if victim else 0)
    return name


@agent.capability("sweep.post", timeout_s=20)
async def post(name: str, folder: str, seconds: float) -> str:
    return await work(name, folder, seconds)


@agent.capability("sweep.put", idempotent=True, timeout_s=20)
async def put(name: str, folder: str, seconds: float) -> str:
    return await work(name, folder, seconds)


agent.run()
"""


@pytest.fixture
async def fleet(own_system: Any, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Agents and callers on a server of the test's own; at its end nothing may be left of them."""
    await asyncio.to_thread(own_system.provision)
    fleet = Fleet(own_system, tmp_path)
    try:
        yield fleet
    finally:
        await fleet.close()


def begin(
    bus: Bus, folder: Path, capability: str, *, seconds: float = 60, timeout_s: float = 4
) -> asyncio.Task[Reply]:
    """Begin one call under a key, which is not repeated."""
    params = {"name": capability, "folder": str(folder), "seconds": seconds}
    return asyncio.create_task(
        bus.request(capability, params, idempotency_key="k-1", retry=False, timeout_s=timeout_s)
    )


async def has_begun(folder: Path, *capabilities: str) -> None:
    """Wait until their handlers have started."""
    begun = folder / "begun"
    await eventually(lambda: begun.exists() and set(capabilities) == set(begun.read_text().split()))


async def entry_of(system: Any, key: str) -> IdempotencyEntry | None:
    async with system.connection(Role.PLATFORM) as connection:
        store = IdempotencyStore(connection)
        found = await store.read(key)
        store.close()
        return None if found is None else found.entry


async def put(system: Any, key: str, state: EntryState, **more: Any) -> None:
    """Put an entry into the store, as an agent that is not there any more has left it."""
    said: dict[str, Any] = {
        "capability": "left.a",
        "tenant": "default",
        "instance": "ledger-abcdefgh",
        "digest": "d",
    }
    said |= {"idempotency_key": "k-1", **more}
    entry = IdempotencyEntry(state=state, generation=AT, begun_at=AT, **said)
    async with system.connection(Role.PLATFORM) as connection:
        store = IdempotencyStore(connection)
        await store.create(key, entry)
        store.close()


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SOON_S):
        while not await is_so():  # noqa: ASYNC110 - a store has no event to offer
            await asyncio.sleep(0.05)


async def test_a_write_that_its_instance_took_with_it_is_listed_once(fleet: Fleet, tmp_path: Path) -> None:
    """RETRY-2: by one of two platforms, with one alert; an idempotent call is not: whoever repeats it does it."""
    system, heard = fleet.system, list[Any]()
    write, safe = (explicit_key("default", "k-1", name) for name in ("sweep.post", "sweep.put"))
    bus = await fleet.connect()
    operator = await fleet.connection(Role.OPERATOR)
    operator.subscribe("reach.alert.outcome_unknown", lambda delivery: heard.append(alert_of(delivery)))
    await operator.flush()
    victim = await fleet.program(LEDGER, name="victim", VICTIM="yes")
    calls = [begin(bus, tmp_path, name) for name in ("sweep.post", "sweep.put")]
    await has_begun(tmp_path, "sweep.post", "sweep.put")
    await fleet.program(LEDGER, name="heir", VICTIM="no")
    victim.kill()
    (lost, _) = await asyncio.gather(*calls)
    assert lost.error is not None
    assert Reason.OUTCOME_UNKNOWN is not lost.error.reason
    assert Executed.MAYBE is lost.error.executed

    async with listed(system, sweep_s=TURN_S), listed(system, sweep_s=TURN_S):
        (row,) = await rows(system, "sweep.*")
        await asyncio.sleep(3 * TURN_S)
        (same,) = await rows(system, "sweep.*")
        assert ((), row.outcome.reach_id) == (same.also, same.outcome.reach_id)
        assert ("sweep.post", "INSTANCE_GONE", write) == (
            row.outcome.capability,
            row.outcome.cause,
            row.outcome.store_key,
        )
        assert victim.instances == [row.outcome.instance]
        stored = [await entry_of(system, key) for key in (write, safe)]
        assert [EntryState.UNKNOWN, EntryState.RUNNING] == [entry and entry.state for entry in stored]
        await eventually(lambda: heard)

        await ask(system, "resolve", id=row.outcome.reach_id, verdict="not-executed")
        again = [await begin(bus, tmp_path, name, timeout_s=18) for name in ("sweep.post", "sweep.put")]
        assert [("sweep.post", False), ("sweep.put", False)] == [
            (reply.data, reply.duplicate) for reply in again
        ]
        await asyncio.sleep(3 * TURN_S)
        assert 0 == (await ask(system, "list")).open
        assert 1 == len(await rows(system, "sweep.*", resolved=True))
    assert ["sweep.post"] == heard


def alert_of(delivery: Delivery) -> Any:
    return codec.unpack(delivery.data)["subject"]


async def test_a_stopped_owner_is_not_gone_within_its_lease(fleet: Fleet, tmp_path: Path) -> None:
    """IDEM-3: nothing is said of a call whose process is stopped; it goes on, and its result is kept."""
    key = explicit_key("default", "k-1", "sweep.post")
    program = await fleet.program(LEDGER, name="stopped", VICTIM="yes")
    call = begin(await fleet.connect(), tmp_path, "sweep.post", seconds=1, timeout_s=18)
    await has_begun(tmp_path, "sweep.post")
    os.kill(program.pid, signal.SIGSTOP)
    try:
        async with listed(fleet.system, sweep_s=TURN_S):
            await asyncio.sleep(6)  # Longer than an instance that is not there has to be missed.
            entry = await entry_of(fleet.system, key)
            assert entry is not None
            assert EntryState.RUNNING is entry.state
            assert 0 == (await ask(fleet.system, "list")).open
    finally:
        os.kill(program.pid, signal.SIGCONT)
    assert "sweep.post" == (await call).data


async def test_what_is_unknown_already_is_listed(fleet: Fleet) -> None:
    """One whose caller could not enter it; not one that a caller entered, or that no call can have left so."""
    system = fleet.system
    key = explicit_key("default", "k-1", "left.a")
    entered = explicit_key("default", "k-2", "left.b")
    implied = implicit_key("default", "s-1", "t-1", "left.c", "d")
    ended = {"done_at": AT + 5, "executed": Executed.MAYBE, "cause": "DEADLINE"}
    caller = UnknownOutcome(
        reach_id="rch_b", capability="left.b", idempotency_key="k-2", store_key=entered, at=AT + 6
    )
    async with system.connection() as connection:
        data = codec.pack(caller.model_dump(exclude_none=True))
        connection.publish(subjects.unknown("default"), data)
        await connection.flush()
    await put(system, "0" * 40, EntryState.UNKNOWN, **ended)
    await put(system, "1" * 40, EntryState.UNKNOWN, **ended | {"tenant": "a.>"})
    await put(system, entered, EntryState.UNKNOWN, **ended, capability="left.b", idempotency_key="k-2")
    await put(
        system,
        implied,
        EntryState.UNKNOWN,
        **ended,
        capability="left.c",
        idempotency_key=None,
        session_id="s-1",
        task_id="t-1",
        implicit=True,
    )
    await put(system, key, EntryState.UNKNOWN, **ended, message_id="m-1", agent_id="ledger")
    async with system.connection(Role.PLATFORM) as connection:
        connection.publish("$KV.reach_idempotency." + "2" * 40, b"\xc1")
        await connection.flush()
    await put(system, "3" * 40, EntryState.RUNNING, instance="ledger *")
    async with listed(system, sweep_s=TURN_S):
        found = await rows(system, "left.*", count=3)
        await asyncio.sleep(3 * TURN_S)
        assert 3 == (await ask(system, "list")).open
        assert ["left.a", "left.b", "left.c"] == sorted(row.outcome.capability for row in found)
        assert {()} == {row.also for row in found}
        (row,) = (await ask(system, "show", id="m-1")).rows
        assert (AT + 5, "ledger", "DEADLINE") == (row.outcome.at, row.outcome.provider, row.outcome.cause)
        await ask(system, "resolve", id="m-1", verdict="executed", result=7)
    entry = await entry_of(system, key)
    assert entry is not None
    assert entry.reply is not None
    assert (EntryState.DONE, 7) == (entry.state, entry.reply.data)


async def test_more_than_there_is_room_for_is_listed_in_turns(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not held at first is read when there is room; nothing is lost, and nothing listed twice."""
    monkeypatch.setattr(left, "MOST", 2)
    monkeypatch.setattr(sweep, "_LATER_S", 0.1)
    for number in range(5):
        key = explicit_key("default", f"k-{number}", "left.a")
        await put(fleet.system, key, EntryState.UNKNOWN, idempotency_key=f"k-{number}")
    async with listed(fleet.system, sweep_s=TURN_S):
        found = await rows(fleet.system, "left.a", count=5)
        await asyncio.sleep(3 * TURN_S)
        assert 5 == (await ask(fleet.system, "list")).open
    assert {()} == {row.also for row in found}


async def test_an_idempotent_call_that_nobody_repeats_is_released_in_the_end(fleet: Fleet) -> None:
    """After as long as results are kept its running entry is gone, and so none stays for ever."""
    key = explicit_key("default", "k-1", "left.a")
    await put(fleet.system, key, EntryState.RUNNING, idempotent=True)

    async def is_free() -> bool:
        return await entry_of(fleet.system, key) is None

    async with listed(fleet.system, sweep_s=TURN_S):
        await until(is_free)
        assert 0 == (await ask(fleet.system, "list")).open
