"""The list of unknown outcomes: what is on it, who is alerted, who resolves, and who comes second."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import reach
from reach.bus.framing import Delivery
from reach.bus.idempotency import IdempotencyStore
from reach.bus.jetstream import JetStream
from reach.bus.keys import Role
from reach.errors import CallTimeout, ReachError, SchemaInvalid
from reach.policy.dedupe import explicit_key
from reach.policy.fingerprint import digest
from reach.wire import codec, subjects
from reach.wire.idempotency import EntryState, IdempotencyEntry
from reach.wire.task import TaskState
from reach.wire.unknown import UnknownOutcome, Verdict
from tests.actors.unknowns_rig import ask, listed, rows
from tests.runtime.fleet import Fleet, eventually

AT = 1_700_000_000_000


@pytest.fixture
async def platform(system: Any) -> AsyncIterator[Any]:
    """The shared server, with the actor."""
    async with listed(system):
        yield system


@pytest.fixture
async def fleet(system: Any, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Agents and callers on the shared server; at its end nothing may be left of them."""
    fleet = Fleet(system, tmp_path)
    try:
        yield fleet
    finally:
        await fleet.close()


def unknown(capability: str, number: int = 1, **more: Any) -> UnknownOutcome:
    return UnknownOutcome(
        reach_id=f"rch_{capability.replace('.', '')}{number}",
        message_id=f"{capability.replace('.', '')}{number}",
        capability=capability,
        cause="INSTANCE_GONE",
        at=AT + number,
        instance="ledger-abcdefgh",
        parameters={"n": number},
        digest=digest({"n": number}),
        **more,
    )


def keyed(capability: str, key: str = "k-1", number: int = 1) -> UnknownOutcome:
    store_key = explicit_key("default", key, capability)
    return unknown(capability, number, idempotency_key=key, store_key=store_key)


async def enter(system: Any, *outcomes: UnknownOutcome, tenant: str = "default") -> None:
    """Enter calls as a caller does."""
    async with system.connection() as connection:
        jetstream = JetStream(connection)
        for outcome in outcomes:
            data = codec.pack(outcome.model_dump(exclude_none=True))
            await jetstream.publish(subjects.unknown(tenant), data)
        jetstream.close()


async def put(system: Any, outcome: UnknownOutcome, state: EntryState, **more: Any) -> None:
    """Put an entry into the idempotency store, as the agent that has the call does."""
    entry = IdempotencyEntry(
        state=state,
        capability=outcome.capability,
        tenant="default",
        instance="ledger-abcdefgh",
        generation=AT,
        digest=outcome.digest,
        begun_at=AT,
        lease_ttl_s=1.0,
        **more,
    )
    async with system.connection(Role.PLATFORM) as connection:
        store = IdempotencyStore(connection)
        await store.create(outcome.store_key or "", entry)
        store.close()


async def entry_of(system: Any, outcome: UnknownOutcome) -> IdempotencyEntry | None:
    async with system.connection(Role.PLATFORM) as connection:
        store = IdempotencyStore(connection)
        found = await store.read(outcome.store_key or "")
        store.close()
        return None if found is None else found.entry


# -- looking -----------------------------------------------------------------------------------------


async def test_the_list_has_what_callers_entered(platform: Any) -> None:
    """Newest first, without parameters; `show` has them; what is resolved is left out unless asked for."""
    await enter(platform, *(unknown("look.a", n) for n in (1, 2, 3)), unknown("look.b", 4))
    found = await rows(platform, "look.*", count=4)

    assert ["rch_lookb4", "rch_looka3", "rch_looka2", "rch_looka1"] == [row.outcome.reach_id for row in found]
    assert {None} == {row.outcome.parameters for row in found}
    (one,) = (await ask(platform, "show", id="looka2")).rows
    assert {"n": 2} == one.outcome.parameters
    await ask(platform, "resolve", id="rch_looka2", verdict="executed")
    assert 2 == len((await ask(platform, "list", capability="look.a")).rows)
    assert 3 == len((await ask(platform, "list", capability="look.a", resolved=True)).rows)
    assert 1 == len((await ask(platform, "list", capability="look.a", since=AT + 3)).rows)


async def test_the_list_has_pages(platform: Any) -> None:
    """A page says where the next one begins; the last one does not."""
    await enter(platform, *(unknown("page.a", n) for n in range(5)))
    await rows(platform, "page.a", count=5)
    first = await ask(platform, "list", capability="page.a", limit=3)
    second = await ask(platform, "list", capability="page.a", limit=3, before=first.before)

    assert (3, 2, None) == (len(first.rows), len(second.rows), second.before)
    assert 5 == len({row.outcome.reach_id for row in (*first.rows, *second.rows)})


async def test_calls_that_met_the_same_entry_are_one_line(platform: Any) -> None:
    """A duplicate that met what a dead owner left is named beside the first one, and found by its id."""
    await enter(
        platform, keyed("same.a", number=1), keyed("same.a", number=2), keyed("same.a", "k-2", number=3)
    )
    found = await rows(platform, "same.a", count=2)

    assert [(), ("rch_samea2",)] == [row.also for row in found]
    assert "rch_samea1" == (await ask(platform, "show", id="rch_samea2")).rows[0].outcome.reach_id


async def test_what_comes_late_was_resolved_before(platform: Any) -> None:
    """An entry whose call ended before a resolution of its key, and that comes after it, opens nothing anew."""
    await enter(platform, keyed("tardy.a", number=1))
    await rows(platform, "tardy.a")
    await ask(platform, "resolve", id="rch_tardya1", verdict="not-executed")
    later = int(time.time() * 1000) + 60_000
    await enter(
        platform, keyed("tardy.a", number=2), keyed("tardy.a", number=3).model_copy(update={"at": later})
    )
    (row,) = await rows(platform, "tardy.a")

    assert "rch_tardya3" == row.outcome.reach_id
    assert "rch_tardya1" == (await ask(platform, "show", id="rch_tardya2")).rows[0].outcome.reach_id


async def test_a_caller_cannot_name_a_key_that_is_not_its_calls(platform: Any) -> None:
    """The key of an entry follows from the rest of it, and the tenant from the subject; else it has none."""
    forged = keyed("forged.a").model_copy(update={"store_key": explicit_key("default", "k-1", "other.a")})
    await enter(platform, forged, tenant="acme")
    (row,) = await rows(platform, "forged.a")

    assert ("acme", None) == (row.outcome.tenant, row.outcome.store_key)


async def test_what_cannot_be_read_stops_nothing(platform: Any) -> None:
    """A message that is no entry is passed over."""
    async with platform.connection() as connection:
        jetstream = JetStream(connection)
        odd = (
            {"reach_id": 7},
            {"reach_id": "a.>", "capability": "a.b"},
            {"reach_id": "a", "capability": "A b"},
        )
        for data in (b"hello", b"", *map(codec.pack, odd)):
            await jetstream.publish("reach.unknown.default", data)
        jetstream.close()
    await enter(platform, unknown("after.a"))
    assert 1 == len(await rows(platform, "after.a"))


async def test_only_what_is_there_may_be_asked(platform: Any) -> None:
    """An unknown verb, an unknown id and a wrong body are refused in words."""
    with pytest.raises(SchemaInvalid, match="right would be one of list, show, resolve"):
        await ask(platform, "remove", id="x")
    with pytest.raises(ReachError, match="rch_nobody is not on the list"):
        await ask(platform, "show", id="rch_nobody")
    with pytest.raises(SchemaInvalid, match="verdict"):
        await ask(platform, "resolve", id="rch_nobody", verdict="perhaps")


# -- alerts ------------------------------------------------------------------------------------------


async def test_operators_are_alerted_once(system: Any) -> None:
    """One alert for many of a capability, from one of two platforms, and none again by a platform that starts."""
    heard = list[dict[str, Any]]()

    def hear(delivery: Delivery) -> None:
        heard.append(codec.unpack(delivery.data))

    async with system.connection(Role.OPERATOR) as operator:
        operator.subscribe("reach.alert.outcome_unknown", hear)
        await operator.flush()
        async with listed(system), listed(system):
            await enter(system, *(unknown("alert.a", n) for n in range(3)))
            await eventually(lambda: [one for one in heard if one["subject"] == "alert.a"])
            await enter(system, unknown("alert.a", 9))
            await rows(system, "alert.a", count=4)
        async with listed(system):
            await asyncio.sleep(1.5)  # Two looks of the fresh platform.
    (told,) = [one for one in heard if one["subject"] == "alert.a"]
    assert ("critical", "reach outcomes show rch_alerta0") == (told["severity"], told["link"])
    assert 1 <= told["count"] <= 3


# -- resolving ---------------------------------------------------------------------------------------


async def test_of_two_operators_the_first_word_holds(platform: Any) -> None:
    """Ten at once, of both opinions: one resolution, and all others are told whose and when."""
    await enter(platform, unknown("race.a"))
    await rows(platform, "race.a")

    async def say(number: int) -> str:
        verdict = Verdict.EXECUTED if number % 2 else Verdict.NOT_EXECUTED
        try:
            await ask(platform, "resolve", id="rch_racea1", verdict=verdict, by=f"op{number}")
        except ReachError as error:
            return error.message
        return ""

    async with listed(platform):  # A second platform answers about half of them.
        told = await asyncio.gather(*(say(number) for number in range(10)))
    first = (await ask(platform, "show", id="rch_racea1")).rows[0].resolution
    assert first is not None
    assert 1 == told.count("")
    assert {f"{first.by} resolved it as {first.verdict} at"} == {
        text.rpartition(" at ")[0] + " at" for text in told if text
    }
    await ask(
        platform, "resolve", id="rch_racea1", verdict=first.verdict, by=first.by
    )  # The same word again.


async def test_a_resolution_is_audited(platform: Any) -> None:
    """Who, what, of which call, and why."""
    heard = list[dict[str, Any]]()
    await enter(platform, unknown("audit.a"))
    await rows(platform, "audit.a")
    async with platform.connection(Role.OPERATOR) as operator:
        operator.subscribe("reach.audit.*", lambda delivery: heard.append(codec.unpack(delivery.data)))
        await operator.flush()
        await ask(platform, "resolve", id="rch_audita1", verdict="executed", note="seen it")
        await eventually(lambda: heard)
    (entry,) = heard
    assert ("jo", "outcome.resolve", "rch_audita1", "seen it", "executed") == tuple(
        entry[name] for name in ("who", "what", "target", "why", "after")
    )


async def test_executed_makes_the_entry_done(platform: Any) -> None:
    """The operator's result is what the entry holds from then on."""
    outcome = keyed("done.a")
    await put(platform, outcome, EntryState.UNKNOWN)
    await enter(platform, outcome)
    await rows(platform, "done.a")
    told = await ask(platform, "resolve", id=outcome.reach_id, verdict="executed", result={"id": 17})

    entry = await entry_of(platform, outcome)
    assert "resolved as executed: its idempotency entry is done" == told.message
    assert entry is not None
    assert (EntryState.DONE, "jo", {"id": 17}) == (entry.state, entry.resolved_by, entry.reply.data)  # type: ignore[union-attr]


async def test_executed_makes_an_entry_where_there_is_none(platform: Any) -> None:
    """A call with a key whose entry is gone is not done again either."""
    outcome = keyed("made.a")
    await enter(platform, outcome)
    await rows(platform, "made.a")
    assert "absent" == (await ask(platform, "show", id=outcome.reach_id)).key.state  # type: ignore[union-attr]
    await ask(platform, "resolve", id=outcome.reach_id, verdict="executed")

    entry = await entry_of(platform, outcome)
    assert entry is not None
    assert (EntryState.DONE, outcome.digest) == (entry.state, entry.digest)


@pytest.mark.parametrize("verdict", ["not-executed", "retry"])
async def test_not_executed_releases_the_entry(platform: Any, verdict: str) -> None:
    """A later duplicate may run then."""
    outcome = keyed(f"free.{verdict}")
    await put(platform, outcome, EntryState.UNKNOWN)
    await enter(platform, outcome)
    await rows(platform, f"free.{verdict}")
    told = await ask(platform, "resolve", id=outcome.reach_id, verdict=verdict)

    assert f"resolved as {verdict}: its idempotency entry is released" == told.message
    assert await entry_of(platform, outcome) is None
    assert {"n": 1} == told.rows[0].outcome.parameters


async def test_what_was_done_after_all_is_not_released(platform: Any) -> None:
    """Its owner's late word counts: the entry says that it was done, and an operator cannot say otherwise."""
    outcome = keyed("late.a")
    await put(platform, outcome, EntryState.DONE, done_at=AT)
    await enter(platform, outcome)
    await rows(platform, "late.a")
    with pytest.raises(ReachError, match="it was executed after all"):
        await ask(platform, "resolve", id=outcome.reach_id, verdict="not-executed")
    told = await ask(platform, "resolve", id=outcome.reach_id, verdict="executed", result="mine")

    assert "resolved as executed: its idempotency entry was done already: that result stays" == told.message


async def test_what_is_under_way_cannot_be_resolved(platform: Any, fleet: Fleet) -> None:
    """As long as its instance lives, a running call has no unknown outcome; when it is gone it may be resolved."""
    agent = reach.Agent("ledger")

    @agent.capability("way.a")
    async def way() -> None:
        await asyncio.sleep(0)

    instance = await fleet.serve(agent)
    outcome = keyed("way.a")
    await enter(platform, outcome)
    await rows(platform, "way.a")
    entry = IdempotencyEntry(
        state=EntryState.RUNNING,
        capability="way.a",
        tenant="default",
        instance=instance.name,
        generation=instance.generation,
        digest=outcome.digest,
        begun_at=AT,
    )
    async with platform.connection(Role.PLATFORM) as connection:
        store = IdempotencyStore(connection)
        await store.create(outcome.store_key or "", entry)
        store.close()
    key = (await ask(platform, "show", id=outcome.reach_id)).key
    assert key is not None
    assert ("running", instance.name, True) == (key.state, key.owner, key.lives)
    with pytest.raises(ReachError, match=f"still under way at {instance.name}"):
        await ask(platform, "resolve", id=outcome.reach_id, verdict="not-executed")
    await fleet.stop(instance)
    await asyncio.sleep(0.3)  # Whoever was asked a moment ago is not asked again.
    told = await ask(platform, "resolve", id=outcome.reach_id, verdict="not-executed")

    assert "resolved as not-executed: its idempotency entry is released" == told.message


async def test_a_retry_is_allowed_again_by_asking_for_it(platform: Any) -> None:
    """Whoever sends it once more has to say so, and nothing is released a second time."""
    outcome = keyed("again.a")
    await put(platform, outcome, EntryState.UNKNOWN)
    await enter(platform, outcome)
    await rows(platform, "again.a")
    await ask(platform, "resolve", id=outcome.reach_id, verdict="retry", by="jo")
    await put(platform, outcome, EntryState.UNKNOWN)
    with pytest.raises(ReachError, match=r"jo resolved it as retry at .*--again"):
        await ask(platform, "resolve", id=outcome.reach_id, verdict="retry", by="kim")
    told = await ask(platform, "resolve", id=outcome.reach_id, verdict="retry", by="kim", again=True)

    assert {"n": 1} == told.rows[0].outcome.parameters
    entry = await entry_of(platform, outcome)
    assert entry is not None
    assert EntryState.UNKNOWN is entry.state


async def test_what_cannot_be_sent_again_is_refused(platform: Any) -> None:
    """A retry without parameters, of a guarded function or of a stream, and a result without `executed`."""
    bare = unknown("cannot.a", 1).model_copy(update={"parameters": None})
    local = unknown("cannot.a", 2, kind="local")
    parts = unknown("cannot.a", 3, kind="stream")
    await enter(platform, bare, local, parts)
    await rows(platform, "cannot.a", count=3)
    for one, why in ((bare, "were not kept"), (local, "its own program"), (parts, "called as a stream")):
        with pytest.raises(SchemaInvalid, match=why):
            await ask(platform, "resolve", id=one.reach_id, verdict="retry")
    with pytest.raises(SchemaInvalid, match="a result goes with executed"):
        await ask(platform, "resolve", id=bare.reach_id, verdict="not-executed", result=1)
    assert 3 == len((await ask(platform, "list", capability="cannot.a")).rows)


async def test_what_a_dead_platform_left_undone_is_done(system: Any) -> None:
    """A resolution whose platform died before its effect has its effect by another platform."""
    outcome = keyed("left.a")
    await put(system, outcome, EntryState.UNKNOWN)
    await enter(system, outcome)
    async with system.connection(Role.PLATFORM) as connection:
        store, jetstream = IdempotencyStore(connection), JetStream(connection)
        found = await store.read(outcome.store_key or "")
        assert found is not None
        said = {
            "reach_id": outcome.reach_id,
            "verdict": "not-executed",
            "by": "jo",
            "at": AT,
            "revision": found.revision,
        }
        await jetstream.publish(subjects.unknown_resolved("default", outcome.reach_id), codec.pack(said))
        store.close()
        jetstream.close()
    async with listed(system):
        async with asyncio.timeout(10):
            while await entry_of(system, outcome) is not None:  # noqa: ASYNC110 - a store has no event to offer
                await asyncio.sleep(0.05)
        shown = (await ask(system, "show", id=outcome.reach_id)).rows[0].resolution
    assert shown is not None
    assert "its idempotency entry is released" == shown.applied


async def test_without_the_store_a_word_holds_and_follows_later(own_system: Any) -> None:
    """With the store away nothing can be said of a call with a key; what was said before takes effect later."""
    await asyncio.to_thread(own_system.provision)
    outcome, other = keyed("away.a"), keyed("away.b")
    async with listed(own_system):
        await enter(own_system, outcome, other)
        await rows(own_system, "away.*", count=2)
        async with own_system.connection(Role.PLATFORM) as connection:
            await connection.jetstream().delete_stream("KV_reach_idempotency")
        with pytest.raises(CallTimeout, match="store of idempotency keys is not available"):
            await ask(own_system, "resolve", id=outcome.reach_id, verdict="executed")
        assert 2 == (await ask(own_system, "list")).open


# -- tasks -------------------------------------------------------------------------------------------


async def test_a_task_is_entered_once(system: Any, fleet: Fleet) -> None:
    """A task that ended as unknown is on the list once, whichever platforms look, and however often they start."""
    agent = reach.Agent("tasker")

    @agent.task("unknowns.task")
    async def work() -> None:
        await asyncio.sleep(30)

    instance = await fleet.serve(agent, drain_s=0.2)
    bus = await fleet.connect()
    task = await bus.submit("unknowns.task")
    async for event in task.events():
        if event.state is TaskState.RUNNING:
            break
    async with listed(system), listed(system):
        await fleet.stop(instance)
        (row,) = await rows(system, "unknowns.task")
    async with listed(system):
        found = await rows(system, "unknowns.task")
        shown = (await ask(system, "show", id=task.id)).rows[0]

    assert [row.outcome.reach_id] == [one.outcome.reach_id for one in found]
    assert ("task", task.id, "INSTANCE_GONE") == (row.outcome.kind, row.outcome.task_id, row.outcome.cause)
    assert row.outcome.reach_id == shown.outcome.reach_id
