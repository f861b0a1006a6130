"""Membership that changes all the time under load: what moves weight between instances loses no call."""

import asyncio
from collections import Counter
from itertools import count
from time import monotonic

import pytest

import reach
from reach.call.client import Bus
from reach.wire.reply import Reply
from tests.chaos.stress_rig import NOTHING, Rig, faults_of, left_of, tell
from tests.runtime.fleet import Fleet

RATE_PER_S = 1000
PAUSE_S = 0.01


async def steady(bus: Bus, number: int) -> dict[str, Reply]:
    """Make so many writes at 1 000 a second; one that is lost is an unknown outcome, since none is made again."""
    replies: dict[str, Reply] = {}

    async def one(key: str) -> None:
        replies[key] = await bus.request("stress.write", {"key": key}, timeout_s=20)

    numbers = count()
    next_at = monotonic()
    async with asyncio.TaskGroup() as group:
        while (first := next(numbers) * int(RATE_PER_S * PAUSE_S)) < number:
            for index in range(first, first + int(RATE_PER_S * PAUSE_S)):
                group.create_task(one(f"w{index}"))
            next_at += PAUSE_S
            await asyncio.sleep(max(0.0, next_at - monotonic()))
    return replies


async def flip_under_load(own_rig: Rig, number: int) -> None:
    """Two of three instances change between no ticket and five; one keeps one."""
    stays, *flipping = await own_rig.agents(3)
    bus = await own_rig.bus()
    await bus.cards.instances("stress.write")
    seconds = number / RATE_PER_S
    flips = [
        asyncio.create_task(
            peer.ask("flip", capability="stress.write", count=5, seconds=seconds, answer_s=seconds * 3 + 30)
        )
        for peer in flipping
    ]
    began = monotonic()
    replies = await steady(bus, number)
    took_s = monotonic() - began
    changes = sum([(await flip)["flips"] for flip in flips])
    by = Counter(reply.instance for reply in replies.values())
    failed = faults_of(replies)
    tell(
        f"{len(failed)} of {len(replies)} calls lost in {took_s:.1f} s and {changes} changes of membership; "
        f"{by[stays.name] / len(replies):.0%} went to the one that kept its ticket"
    )
    assert {} == failed
    assert number == len(replies)
    begun = own_rig.effects.begun("write")
    assert Counter({1: number}) == Counter(begun.values())
    assert changes > seconds * 20
    assert all(by[peer.name] > number / 20 for peer in own_rig.peers)
    assert NOTHING == left_of(bus)


@pytest.mark.alone
async def test_changing_tickets_under_load_loses_no_call(own_rig: Rig) -> None:
    """Design 5, LIFE-7: 4 000 calls at 1 000 a second while two of three flip between 0 and 5 tickets: 0 lost."""
    await flip_under_load(own_rig, 4_000)


@pytest.mark.chaos_long
@pytest.mark.timeout(900)
async def test_changing_tickets_for_long_loses_no_call(own_rig: Rig) -> None:
    """The same with 100 000 calls."""
    await flip_under_load(own_rig, 100_000)


async def test_weight_is_the_number_of_tickets(own_rig: Rig) -> None:
    """Design 5: tickets 6:3:1 share the calls so, and an instance without a ticket is asked no more."""
    peers = await own_rig.agents(3)
    bus = await own_rig.bus()
    await bus.cards.instances("stress.read")
    for peer, tickets in zip(peers, (6, 3, 1), strict=True):
        assert (await peer.ask("tickets", capability="stress.read", count=tickets))["done"]
    by = await _asked(bus, 2000)
    shares = [by[peer.name] / 2000 for peer in peers]
    assert [0.6, 0.3, 0.1] == pytest.approx(shares, abs=0.06)
    assert (await peers[0].ask("tickets", capability="stress.read", count=0))["done"]
    by = await _asked(bus, 200)
    assert 0 == by[peers[0].name]
    # It is still there for who names it.
    direct = await bus.request("stress.read", {"key": "d"}, target=peers[0].name.rpartition("-")[0])
    assert direct.ok


async def _asked(bus: Bus, number: int) -> Counter[str | None]:
    replies = [
        reply
        for _ in range(0, number, 100)
        for reply in await asyncio.gather(*(bus.request("stress.read", {"key": "r"}) for _ in range(100)))
    ]
    assert {None} == {reply.error for reply in replies}
    return Counter(reply.instance for reply in replies)


async def test_only_tickets_that_make_sense_are_taken(fleet: Fleet) -> None:
    """Design 5: at most 64 tickets of a capability that is served; an instance that has left takes none."""
    agent = reach.Agent("ticketed")

    @agent.capability("ticket.sold")
    async def sold() -> str:
        return "yes"

    instance = await fleet.serve(agent)
    membership = instance.membership
    assert 1 == membership.tickets("ticket.sold")
    for number in (-1, 65):
        with pytest.raises(ValueError, match=f"0 to 64 tickets of a capability, not {number}"):
            await membership.set_tickets("ticket.sold", number)
    with pytest.raises(ValueError, match=r"does not serve 'ticket\.unsold'; it serves ticket\.sold"):
        await membership.set_tickets("ticket.unsold", 1)
    for number in (64, 0, 3, 3):
        assert await membership.set_tickets("ticket.sold", number)
        assert number == membership.tickets("ticket.sold")
    bus = await fleet.connect()
    assert (await bus.request("ticket.sold")).ok
    await fleet.stop(instance)
    assert not await membership.set_tickets("ticket.sold", 5)
    assert 0 == membership.tickets("ticket.sold")
