"""The supervisor on a real server: instances register, are given tickets, and go; operators are obeyed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from reach.bus.framing import Delivery
from reach.bus.keys import Role
from reach.errors import ReachError, SchemaInvalid, Unreachable
from reach.wire import codec, subjects
from reach.wire.life import Heartbeat
from reach.wire.registration import RouteVerb
from tests.chaos.supervisor_rig import SupervisorRig, agent, card, opened

Until = Callable[..., Any]


@pytest.fixture
async def rig(own_system: Any, tmp_path: Path) -> AsyncIterator[SupervisorRig]:
    """A server with its buckets, and nobody on it yet."""
    async with opened(own_system, tmp_path) as rig:
        yield rig


async def eventually(condition: Callable[[], Any], *, within_s: float = 10.0) -> Any:
    async with asyncio.timeout(within_s):
        while not (found := await condition()):  # noqa: ASYNC110 - asked of another process
            await asyncio.sleep(0.01)
    return found


async def test_an_instance_that_registers_holds_what_it_is_told(rig: SupervisorRig) -> None:
    """The answer to a registration carries the tickets: one each while all are healthy; a worse tier stands by."""
    async with rig.supervisor():
        first, _ = await rig.serve(agent("reader"))
        second, _ = await rig.serve(agent("reader"))
        standby, _ = await rig.serve(agent("spare", priority=20))
        held = [one.membership.tickets("job.do") for one in (first, second, standby)]
        assert [1, 1, 0] == held
        entry = await rig.entry("job.do")
        assert entry is not None
        assert [("reader", 10, 2), ("spare", 20, 1)] == [
            (lane.provider, lane.priority, lane.instances) for lane in entry.lanes
        ]
        assert [(10, 1.0)] == [(tier.priority, tier.share) for tier in entry.tiers]
        kept = await rig.card(first.name)
        assert kept is not None
        assert (True, first.generation) == (kept.present, kept.card.generation)


async def test_instances_that_were_there_before_are_taken_in(rig: SupervisorRig) -> None:
    """Instance before supervisor: it takes part alone, and registers within seconds of the supervisor's start."""
    early, _ = await rig.serve(agent("reader"))
    spare, _ = await rig.serve(agent("spare", priority=20))
    assert (1, 0) == (early.membership.tickets("job.do"), spare.membership.tickets("job.do"))
    async with rig.supervisor():

        async def known() -> bool:
            return {early.name, spare.name} == (await rig.rows()).keys()

        await eventually(known)

        async def settled() -> bool:
            # The spare may have registered first, and then hands over as to any better tier.
            return (1, 0) == (early.membership.tickets("job.do"), spare.membership.tickets("job.do"))

        await eventually(settled, within_s=2)


async def test_a_better_tier_that_comes_later_takes_over_with_its_registration(rig: SupervisorRig) -> None:
    """ROUTE-1: a start is no recovery: tier 20 was first, tier 10 has all the calls one round trip later."""
    async with rig.supervisor():
        spare, _ = await rig.serve(agent("spare", priority=20))
        assert 1 == spare.membership.tickets("job.do")
        better, _ = await rig.serve(agent("reader"))
        assert 1 == better.membership.tickets("job.do")

        async def withdrawn() -> bool:
            return spare.membership.tickets("job.do") == 0

        await eventually(withdrawn, within_s=2)
        entry = await rig.entry("job.do")
        assert entry is not None
        assert [(10, 1.0)] == [(tier.priority, tier.share) for tier in entry.tiers]


async def test_an_instance_alone_in_a_worse_tier_serves(rig: SupervisorRig) -> None:
    """A tier-20 instance alone takes the calls, with a supervisor and without one."""
    alone, end = await rig.serve(agent("spare", priority=20))
    assert 1 == alone.membership.tickets("job.do")
    await end()
    async with rig.supervisor():
        alone, _ = await rig.serve(agent("spare", priority=20))
        assert 1 == alone.membership.tickets("job.do")


async def test_a_tier_that_leaves_hands_over_before_it_goes(rig: SupervisorRig) -> None:
    """LIFE-7: promote before withdraw; while the only instance of a tier stops there is always a responder."""
    async with rig.supervisor():
        _, end = await rig.serve(agent("reader"))
        spare, _ = await rig.serve(agent("spare", priority=20))
        caller = await rig.connection(Role.CALLER)
        answered: list[str] = []
        missed = 0

        async def call() -> None:
            nonlocal missed
            try:
                data = await caller.request("cap.job.do", codec.pack({"x": 1}), timeout_s=2)
            except Unreachable:
                missed += 1
            else:
                answered.append(codec.unpack(data)["provider"])

        calls = []
        ending = asyncio.create_task(end())
        while not ending.done():
            calls.append(asyncio.create_task(call()))
            await asyncio.sleep(0.001)
        await ending
        await asyncio.gather(*calls)
        await call()
        assert 0 == missed
        assert "spare" == answered[-1]
        assert 1 == spare.membership.tickets("job.do")


async def test_weights_are_tickets_for_plain_clients(rig: SupervisorRig) -> None:
    """ROUTE-2: traffic weights of 1 and 0.25 become 4 : 1, in force everywhere in under a second."""
    async with rig.supervisor():
        heavy, _ = await rig.serve(agent("heavy"))
        light, _ = await rig.serve(agent("light"))
        await rig.command(RouteVerb.SET, capability="job.do", weights={"light": 0.25})

        async def moved() -> bool:
            return (4, 1) == (heavy.membership.tickets("job.do"), light.membership.tickets("job.do"))

        await eventually(moved, within_s=1.0)


async def test_a_canary_gets_its_part_of_the_tickets(rig: SupervisorRig) -> None:
    """ROUTE-6: 10 % for the new version is one ticket of ten; ending it makes all equal."""
    async with rig.supervisor():
        old, _ = await rig.serve(agent("reader"))
        new, _ = await rig.serve(agent("reader", version="2.0.0"))
        canary = {"version": "2.0.0", "percent": 10.0}
        answer = await rig.command(RouteVerb.CANARY, capability="job.do", canary=canary)
        assert answer.after is not None

        async def tickets() -> tuple[int, int]:
            return old.membership.tickets("job.do"), new.membership.tickets("job.do")

        async def is_nine_to_one() -> bool:
            return (9, 1) == await tickets()

        async def is_even() -> bool:
            return (1, 1) == await tickets()

        await eventually(is_nine_to_one, within_s=1.0)
        await rig.command(RouteVerb.CANARY, capability="job.do", canary=None)
        await eventually(is_even, within_s=1.0)


async def test_a_crash_takes_an_instance_out_of_the_table_at_once(rig: SupervisorRig) -> None:
    """LIFE-4: a connection that ends without goodbye is out within the sentinel's pause and a second."""
    async with rig.supervisor():
        stays, _ = await rig.serve(agent("reader"))
        crashes, _ = await rig.serve(agent("reader"))
        began = asyncio.get_running_loop().time()
        link = crashes.connection.link
        assert link is not None
        crashes._registration._leaving = True  # It must not come back.
        crashes._leaving = True
        await crashes.connection.close()

        async def out() -> bool:
            entry = await rig.entry("job.do")
            return entry is not None and entry.lanes[0].instances == 1

        await eventually(out, within_s=1.5)
        assert asyncio.get_running_loop().time() - began < 1.5
        kept = await rig.card(crashes.name)
        assert kept is not None
        assert (False, "lost") == (kept.present, kept.ended)
        assert 1 == stays.membership.tickets("job.do")


async def test_a_heartbeat_of_an_unknown_instance_is_answered(rig: SupervisorRig) -> None:
    """LIFE-6: whoever the supervisor does not know is told to register, with the secret that follows from its name."""
    async with rig.supervisor():
        connection = await rig.connection(Role.AGENT)
        told: list[Delivery] = []
        connection.subscribe(subjects.ctl("ghost-00000001", "register"), told.append)
        await connection.flush()
        beat = Heartbeat(agent_id="ghost", instance="ghost-00000001", generation=7, at=1)
        connection.publish(subjects.heartbeat("ghost-00000001"), codec.pack(beat.model_dump()))

        async def was_told() -> bool:
            return bool(told)

        await eventually(was_told)
        assert 7 == codec.unpack(told[0].data)["generation"]
        assert {} == await rig.rows()


async def test_only_the_newest_generation_counts(rig: SupervisorRig) -> None:
    """LIFE-6: an older start of the same instance is outdated, and holds nothing."""
    async with rig.supervisor():
        assert "welcome" == (await rig.register(card(1, generation=5))).status
        older = await rig.register(card(1, generation=4))
        assert ("outdated", {}, "") == (older.status, older.tickets, older.secret)


async def test_an_order_without_the_secret_is_not_followed(rig: SupervisorRig) -> None:
    """A membership order that does not carry the instance's secret changes nothing, whoever sends it."""
    async with rig.supervisor():
        served, _ = await rig.serve(agent("reader"))
        platform = await rig.connection(Role.PLATFORM)
        forged = {
            "term": 10**9,
            "revision": 1,
            "generation": served.generation,
            "secret": "guessed",
            "tickets": {"job.do": 0},
        }
        data = await platform.request(
            subjects.ctl(served.name, "membership"), codec.pack(forged), timeout_s=2
        )
        answer = codec.unpack(data)
        assert (False, "secret") == (answer["applied"], answer["why"])
        assert 1 == served.membership.tickets("job.do")


async def test_an_older_order_is_not_followed(rig: SupervisorRig) -> None:
    """`membership` carries (term, revision), and an instance ignores a pair that is not above its last one."""
    async with rig.supervisor():
        served, _ = await rig.serve(agent("reader"))
        registration = served._registration
        assert registration is not None
        late = {
            "term": registration._term,
            "revision": registration._revision,
            "generation": served.generation,
            "secret": registration._secret,
            "tickets": {"job.do": 0},
        }
        platform = await rig.connection(Role.PLATFORM)
        data = await platform.request(subjects.ctl(served.name, "membership"), codec.pack(late), timeout_s=2)
        assert (False, "outdated") == (codec.unpack(data)["applied"], codec.unpack(data)["why"])
        assert 1 == served.membership.tickets("job.do")


async def test_a_dry_run_changes_nothing(rig: SupervisorRig) -> None:
    """ROUTE-7: a dry run shows the entry as it would be, and nothing holds."""
    async with rig.supervisor():
        await rig.serve(agent("heavy"))
        await rig.serve(agent("light"))
        before = await rig.entry("job.do")
        answer = await rig.command(RouteVerb.SET, capability="job.do", weights={"light": 0.5}, dry_run=True)
        assert answer.after is not None
        assert (False, 0.5) == (answer.in_force, answer.after.lanes[1].weight)
        await asyncio.sleep(0.2)
        assert before == await rig.entry("job.do")


async def test_commands_are_audited(rig: SupervisorRig, until: Until) -> None:
    """ROUTE-7: each change is told on `reach.audit`, with who, why, before and after; reading is not."""
    async with rig.supervisor():
        await rig.serve(agent("reader"))
        platform = await rig.connection(Role.PLATFORM)
        heard: list[Delivery] = []
        platform.subscribe("reach.audit.>", heard.append)
        await platform.flush()
        await rig.command(RouteVerb.EXPLAIN, capability="job.do")
        await rig.command(RouteVerb.OPEN, capability="job.do", provider="reader", reason="it lies")
        await until(lambda: bool(heard))
        (entry,) = [codec.unpack(delivery.data) for delivery in heard]
        assert ("a test", "route.open", "reader job.do", "it lies") == (
            entry["who"],
            entry["what"],
            entry["target"],
            entry["why"],
        )
        assert ("closed" in entry["before"], "forced_open" in entry["after"]) == (True, True)
        operator = (await rig.connection(Role.OPERATOR)).jetstream()
        kept = await operator.get_last_msg("REACH_AUDIT", "reach.audit.default", direct=True)
        assert kept.data is not None
        assert entry == codec.unpack(kept.data)


async def test_a_wrong_command_says_what_would_be_right(rig: SupervisorRig) -> None:
    """A command for what is not there, or that is not well formed, is refused with what is known."""
    async with rig.supervisor():
        await rig.serve(agent("reader"))
        with pytest.raises(SchemaInvalid, match=r"'other' does not serve 'job\.do'; it is served by reader"):
            await rig.command(RouteVerb.OPEN, capability="job.do", provider="other")
        with pytest.raises(SchemaInvalid, match=r"no capability 'job\.dont' is known"):
            await rig.command(RouteVerb.SHOW, capability="job.dont")
        with pytest.raises(SchemaInvalid, match="capability: Field required"):
            await rig.command(RouteVerb.SHOW)


async def test_a_drained_instance_leaves(rig: SupervisorRig) -> None:
    """LIFE-7: `reach.route.drain` lets an instance leave in order, as a signal would."""
    async with rig.supervisor():
        stays, _ = await rig.serve(agent("stays"))
        leaves, _ = await rig.serve(agent("leaves"))
        answer = await rig.command(RouteVerb.DRAIN, target="leaves")
        assert [leaves.name] == [row.instance for row in answer.instances]

        async def gone() -> bool:
            return not leaves.connection.connected

        await eventually(gone)
        kept = await rig.card(leaves.name)
        assert kept is not None
        assert "goodbye" == kept.ended
        assert 1 == stays.membership.tickets("job.do")


async def test_a_link_that_is_replaced_is_registered_anew(rig: SupervisorRig) -> None:
    """An instance registers on every link: after a cut it holds its tickets again, without a warm-up."""
    async with rig.supervisor():
        served, _ = await rig.serve(agent("reader"))
        await rig.serve(agent("reader"))
        link = served.connection.link
        assert link is not None
        link.abort()

        async def back() -> bool:
            return served.connection.epoch == 2 and served.membership.tickets("job.do") == 1

        await eventually(back)
        rows = await rig.rows()
        assert {"live"} == {row.state for row in rows.values()}


async def test_without_a_leader_a_registration_is_told_so_at_once(rig: SupervisorRig) -> None:
    """A follower does not listen to registrations, so "no responders" comes back in milliseconds."""
    began = asyncio.get_running_loop().time()
    with pytest.raises(Unreachable):
        await rig.register(card(1))
    assert asyncio.get_running_loop().time() - began < 0.5


async def test_resync_asks_everybody(rig: SupervisorRig) -> None:
    """ROUTE-7: `resync` finds an instance that the supervisor has lost, and writes the table anew."""
    async with rig.supervisor():
        served, _ = await rig.serve(agent("reader"))
        before = await rig.entry("job.do")
        await rig.command(RouteVerb.RESYNC)

        async def anew() -> bool:
            entry = await rig.entry("job.do")
            return entry is not None and before is not None and entry.revision > before.revision

        await eventually(anew)
        assert {served.name} == (await rig.rows()).keys()
        assert 1 == served.membership.tickets("job.do")


async def test_nobody_but_an_operator_may_command(rig: SupervisorRig) -> None:
    """`reach.route` is the operators': the broker refuses a caller."""
    async with rig.supervisor():
        caller = await rig.connection(Role.CALLER)
        with pytest.raises(ReachError):
            await caller.request(subjects.route("resync"), codec.pack({"by": "me"}), timeout_s=0.3)
