"""Calls whose outcome is unknown are entered on the platform's list, once each, and nobody waits for it (RETRY-2)."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import reach
from reach.bus.jetstream import JetStream
from reach.bus.keys import Role
from reach.call import unknowns
from reach.call.unknowns import Unknowns, keeps_parameters
from reach.errors import CallTimeout, ConfigError, ReachError
from reach.faults import Executed, Reason
from reach.policy.dedupe import explicit_key, implicit_key
from reach.policy.fingerprint import digest
from reach.wire import codec
from reach.wire.reply import Failure, Reply
from reach.wire.unknown import MAX_PARAMETERS_BYTES, UnknownOutcome
from tests.runtime.fleet import Fleet, eventually

LATE_S = 0.15


@pytest.fixture
async def own_fleet(own_system: Any, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Agents and callers on a server of the test's own."""
    await asyncio.to_thread(own_system.provision)
    fleet = Fleet(own_system, tmp_path)
    try:
        yield fleet
    finally:
        await fleet.close()


def writer(name: str) -> reach.Agent:
    """An agent whose capabilities answer too late for who calls with little time."""
    agent = reach.Agent(name)

    @agent.capability(f"{name}.write")
    async def write(params: dict[str, Any]) -> None:
        await asyncio.sleep(30)

    @agent.capability(f"{name}.safe", idempotent=True)
    async def safe() -> None:
        await asyncio.sleep(30)

    @agent.capability(f"{name}.parts")
    async def parts() -> AsyncIterator[int]:
        await asyncio.sleep(30)
        yield 1

    return agent


async def lost(bus: reach.Bus, capability: str, params: Any = None, **options: Any) -> Reply:
    """Make a call that an agent takes and does not answer in time; one that did not get that far is made again."""
    while True:
        reply = await bus.request(capability, params, timeout_s=LATE_S, **options)
        assert reply.error is not None
        if reply.error.executed is not Executed.NO:
            assert Reason.OUTCOME_UNKNOWN == reply.error.reason
            return reply


async def entries(fleet: Fleet, capability: str) -> list[UnknownOutcome]:
    """Everything of a capability in the stream, the parameters included."""
    async with fleet.system.connection(Role.PLATFORM) as connection:
        jetstream = JetStream(connection)
        found, at = [], 1
        wish = {"next_by_subj": "reach.unknown.*"}
        while (stored := await jetstream.message("REACH_UNKNOWN", {**wish, "seq": at})) is not None:
            at = stored.sequence + 1
            try:
                outcome = UnknownOutcome.model_validate(codec.unpack(stored.data))
            except (ValueError, reach.SchemaInvalid):
                continue  # Other tests share the server, and publish what is no entry.
            found += [outcome] if outcome.capability == capability else []
        jetstream.close()
        return found


async def entered(fleet: Fleet, bus: reach.Bus, capability: str) -> UnknownOutcome:
    await eventually(lambda: not len(bus.unknowns))
    (found,) = await entries(fleet, capability)
    return found


async def test_what_nobody_knows_is_entered_once(fleet: Fleet) -> None:
    """A write that timed out is one entry, with who called what, who had it, and why nobody knows."""
    instance = await fleet.serve(writer("once"))
    bus = await fleet.connect()
    params = {"amount": 17, "scan": b"\x00\x01"}
    reply = await lost(bus, "once.write", params, session_id="s-1")

    found = await entered(fleet, bus, "once.write")
    assert (reply.reach_id, "DEADLINE", "request") == (found.reach_id, found.cause, found.kind)
    assert (instance.name, "once", "s-1") == (found.instance, found.provider, found.session_id)
    assert (params, digest(params)) == (found.parameters, found.digest)
    assert (bus.connection.who, "default", None) == (found.source, found.tenant, found.store_key)
    assert [("DEADLINE", "unknown:DEADLINE")] == [(one.reason, one.decision) for one in found.attempts]


async def test_what_may_be_repeated_is_not_entered(fleet: Fleet) -> None:
    """Of an idempotent capability no outcome is unknown: whoever wants it calls again."""
    await fleet.serve(writer("again"))
    bus = await fleet.connect()
    reply = await bus.request("again.safe", timeout_s=LATE_S)

    assert Reason.OUTCOME_UNKNOWN != reply.error.reason
    assert 0 == len(bus.unknowns)
    assert [] == await entries(fleet, "again.safe")


async def test_a_stream_that_never_began_is_entered(fleet: Fleet) -> None:
    """A stream whose first part did not come is unknown as any call is."""
    await fleet.serve(writer("stream"))
    bus = await fleet.connect()
    executed = Executed.NO
    while executed is Executed.NO:  # Until it got as far as the agent.
        with pytest.raises(ReachError) as failed:
            async for _ in bus.stream("stream.parts", timeout_s=LATE_S):
                pass
        executed = failed.value.executed

    found = await entered(fleet, bus, "stream.parts")
    assert "stream" == found.kind


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"idempotency_key": "k-1"}, explicit_key("acme", "k-1", "keys.write")),
        ({"task_id": "t-1"}, implicit_key("acme", "s-1", "t-1", "keys.write", digest({"n": 1}))),
        ({"task_id": "t-1", "dedupe": False}, None),
        ({}, None),
    ],
)
async def test_the_key_is_the_one_that_the_agent_finds(options: dict[str, Any], key: str | None) -> None:
    """The entry names the key in the idempotency store, given or implied, and none where there is none."""
    card = reach.wire.card.CapabilityCard(tag="keys.write")
    call = _call({"n": 1}, card=card, tenant="acme", session_id="s-1", **options)

    assert key == unknowns.outcome_of(call, cause="DEADLINE", at=1).store_key


def _call(params: dict[str, Any], *, card: Any = None, **options: Any) -> Any:
    from reach.call.options import NO_OPTIONS
    from reach.call.prepare import prepare

    return prepare(
        "keys.write",
        params,
        NO_OPTIONS.merged(options),  # type: ignore[arg-type]
        kind="request",
        source="c1",
        now=0.0,
        default_s=1.0,
        card=card,
    )


async def test_large_parameters_are_not_kept(fleet: Fleet) -> None:
    """Of parameters above 64 kB only the digest is entered."""
    await fleet.serve(writer("large"))
    bus = await fleet.connect()
    params = {"text": "x" * MAX_PARAMETERS_BYTES}
    await lost(bus, "large.write", params)

    found = await entered(fleet, bus, "large.write")
    assert (None, digest(params)) == (found.parameters, found.digest)


async def test_parameters_may_be_kept_out(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """REACH_UNKNOWN_PARAMETERS=off keeps them out of the list; what is neither is refused in words."""
    await fleet.serve(writer("secret"))
    monkeypatch.setenv("REACH_UNKNOWN_PARAMETERS", "off")
    bus = await fleet.connect()
    await lost(bus, "secret.write", {"pin": 1234})

    assert (await entered(fleet, bus, "secret.write")).parameters is None
    with pytest.raises(ConfigError, match="`keep` or `off`, not 'no'"):
        keeps_parameters({"REACH_UNKNOWN_PARAMETERS": "no"})


async def test_a_call_inside_a_handler_is_its_agents(fleet: Fleet) -> None:
    """What a handler called is entered by its agent, with the task it belongs to; the outer call is no second entry."""
    await fleet.serve(writer("inner"))
    agent = reach.Agent("outer")

    @agent.capability("outer.call", timeout_s=10)
    async def call(ctx: reach.Context) -> None:
        (await lost(ctx.bus, "inner.write", {"n": 1})).unwrap()

    await fleet.serve(agent)
    bus = await fleet.connect()
    reply = await bus.request("outer.call", task_id="t-9", timeout_s=10)

    async with asyncio.timeout(10):
        while not (found := await entries(fleet, "inner.write")):  # noqa: ASYNC110 - a stream has no event to offer
            await asyncio.sleep(0.02)
    assert Executed.YES == reply.error.executed
    assert ["outer"] == [one.agent_id for one in found]
    assert ["t-9"] == [one.task_id for one in found]
    assert found[0].store_key is not None
    assert [] == await entries(fleet, "outer.call")


async def test_a_guarded_function_is_entered(fleet: Fleet) -> None:
    """A guarded function that nobody knows the end of is entered by the bus at hand, as what its own program runs."""
    bus = await fleet.connect()

    @reach.guard("ledger.guarded", timeout_s=LATE_S)
    async def write() -> None:
        await asyncio.sleep(30)

    with pytest.raises(ReachError):
        await write()
    found = await entered(fleet, bus, "ledger.guarded")
    assert ("local", "local", None) == (found.kind, found.instance or found.provider, found.parameters)


async def test_a_guarded_function_in_a_thread_is_entered(fleet: Fleet) -> None:
    """In a handler that runs in a thread it is its agent's bus that enters it."""
    agent = reach.Agent("threaded")

    @reach.guard("ledger.threaded")
    def write() -> None:
        raise CallTimeout("nobody said how it ended")

    @agent.capability("threaded.run", idempotent=True)
    def run() -> str:
        write.reply()
        return "over"

    await fleet.serve(agent)
    bus = await fleet.connect()
    assert "over" == (await bus.request("threaded.run")).data
    async with asyncio.timeout(10):
        while not (found := await entries(fleet, "ledger.threaded")):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)
    assert [("local", "threaded")] == [(one.kind, one.agent_id) for one in found]


async def test_nothing_is_lost_when_the_server_dies_after_the_reply(own_fleet: Fleet) -> None:
    """Killed right after the reply, the server has the entry when it is back: once, though it was sent twice."""
    await own_fleet.serve(writer("blink"))
    bus = await own_fleet.connect()
    for _ in range(5):
        await lost(bus, "blink.write", {"n": 1})
        os.kill(own_fleet.system.server.info.pid, signal.SIGKILL)
        await asyncio.to_thread(own_fleet.system.restart)
        await eventually(lambda: not len(bus.unknowns))
        await eventually(lambda: bus.connection.connected)

    found = await entries(own_fleet, "blink.write")
    assert 5 == len({one.reach_id for one in found})
    assert 5 == len(found)


async def test_an_entry_that_was_stored_is_stored_once(fleet: Fleet) -> None:
    """Sent again after a lost acknowledgement, an entry is the same message."""
    async with fleet.system.connection() as connection:
        call = _call({"n": 2})
        for _ in range(2):
            waiting = Unknowns(connection)
            waiting.add(call, Failure.of(Reason.OUTCOME_UNKNOWN))
            await waiting.close()
    assert 1 == len([one for one in await entries(fleet, "keys.write") if one.reach_id == call.reach_id])


async def test_where_there_is_no_list_the_log_says_so(
    own_system: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a platform the caller has its reply all the same, ends at once, and the log names the call."""
    fleet = Fleet(own_system, tmp_path)
    try:
        await fleet.serve(writer("bare"))
        bus = await fleet.connect()
        reply = await lost(bus, "bare.write")
        await eventually(lambda: "cannot be listed" in caplog.text)
        assert 1 == len(bus.unknowns)
    finally:
        with caplog.at_level(logging.ERROR):
            await fleet.close()
    assert f"could not be listed (there is no list): {reply.reach_id}" in caplog.text
    assert 1 == bus.unknowns.lost


async def test_the_line_is_bounded(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than fit the line are counted and named in the log, not held."""
    monkeypatch.setattr(unknowns, "MOST_WAITING", 2)
    async with fleet.system.connection() as connection:
        waiting = Unknowns(connection)
        for _ in range(3):
            waiting.add(_call({"n": 3}), Failure.of(Reason.OUTCOME_UNKNOWN))
        assert (2, 1) == (len(waiting), waiting.lost)
        await waiting.close()
    assert 0 == len(waiting)


async def test_what_is_known_is_not_entered(fleet: Fleet) -> None:
    """A failure that was executed, or of another reason, is none of the list's."""
    async with fleet.system.connection() as connection:
        waiting = Unknowns(connection)
        waiting.add(_call({}), Failure.of(Reason.OUTCOME_UNKNOWN, executed=Executed.YES))
        waiting.add(_call({}), Failure.of(Reason.DEADLINE))
        assert 0 == len(waiting)
        await waiting.close()
