"""Shares through the table: weights, canaries and strategies, for our own callers and for plain NATS clients."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from reach.bus.keys import Role
from reach.wire import codec
from reach.wire.registration import RouteVerb
from reach.wire.reply import Reply
from reach.wire.route import RouteEntry
from tests.chaos.steering_rig import CAPABILITY, connected, counted, spread, told
from tests.chaos.supervisor_rig import SupervisorRig, agent, opened, tell

CALLS = 10_000


@pytest.fixture
async def rig(own_system: Any, tmp_path: Path) -> AsyncIterator[SupervisorRig]:
    """A server with its buckets, and nobody on it yet."""
    async with opened(own_system, tmp_path) as rig:
        yield rig


def _has_percent(percent: float, entry: RouteEntry) -> bool:
    return entry.canary is not None and entry.canary.percent == percent


def _is_in(group: set[str], reply: Reply) -> bool:
    return reply.instance in group


async def test_the_shares_of_lanes_are_their_weights(rig: SupervisorRig) -> None:
    """ROUTE-2: 10 000 calls over three lanes of weight 5 : 3 : 2 are within 1.5 points of that."""
    async with rig.supervisor():
        for name in ("a", "b", "c"):
            await rig.serve(agent(name))
        bus = await connected(rig)
        await rig.command(RouteVerb.SET, capability=CAPABILITY, weights={"b": 0.6, "c": 0.4})
        await told(bus, lambda entry: {0.6, 0.4} <= {lane.terms.traffic for lane in entry.lanes})
        shares = counted(await spread(bus, CALLS), lambda reply: reply.provider)
        tell(f"shares {shares}")
        assert all(abs(shares[name] - wanted) <= 1.5 for name, wanted in (("a", 50), ("b", 30), ("c", 20)))


async def test_a_canary_gets_its_percentage_from_ours_and_from_plain_clients(rig: SupervisorRig) -> None:
    """ROUTE-6: a version at 5 % gets 5 % ± 1 of 10 000 calls through ours, ± 3 through a plain NATS client."""
    async with rig.supervisor():
        for version in ("1.0.0", "1.0.0", "2.0.0"):
            await rig.serve(agent("best", version=version))
        bus = await connected(rig)
        canary = {"version": "2.0.0", "percent": 5.0}
        await rig.command(RouteVerb.CANARY, capability=CAPABILITY, canary=canary)
        await told(bus, lambda entry: entry.canary is not None)
        shares = counted(await spread(bus, CALLS), lambda reply: reply.data["version"])
        caller = await rig.connection(Role.CALLER)
        plain: Counter[str] = Counter()

        async def some(number: int) -> None:
            for _ in range(number):
                data = await caller.request("cap.job.do", codec.pack({"x": 1}), timeout_s=2)
                plain[codec.unpack(data)["data"]["version"]] += 1

        await asyncio.gather(*(some(60) for _ in range(50)))
        tell(f"canary: ours {shares['2.0.0']:.2f} %, plain {plain['2.0.0'] / 30:.2f} %")
        assert abs(shares["2.0.0"] - 5) <= 1
        assert abs(plain["2.0.0"] / 30 - 5) <= 3


async def test_named_callers_always_go_to_the_canary(rig: SupervisorRig) -> None:
    """ROUTE-6: a caller that the canary names meets only it, the others never at 0 %."""
    async with rig.supervisor():
        for version in ("1.0.0", "2.0.0"):
            await rig.serve(agent("best", version=version))
        named, other = await connected(rig), await connected(rig)
        canary = {"version": "2.0.0", "percent": 0.0, "callers": [named.connection.who]}
        await rig.command(RouteVerb.CANARY, capability=CAPABILITY, canary=canary)
        for bus in (named, other):
            await told(bus, lambda entry: entry.canary is not None)
        theirs, others = await asyncio.gather(spread(named, 100), spread(other, 100))
        assert {"2.0.0": 100.0} == counted(theirs, lambda reply: reply.data["version"])
        assert {"1.0.0": 100.0} == counted(others, lambda reply: reply.data["version"])


async def test_a_label_group_is_a_canary_too(rig: SupervisorRig) -> None:
    """ROUTE-6: 20 % for whoever has the label, changed while calls run."""
    async with rig.supervisor():
        await rig.serve(agent("best"))
        await rig.serve(agent("best", labels={"ring": "inner"}))
        bus = await connected(rig)
        for percent in (20.0, 60.0):
            canary = {"labels": {"ring": "inner"}, "percent": percent}
            await rig.command(RouteVerb.CANARY, capability=CAPABILITY, canary=canary)
            await told(bus, partial(_has_percent, percent))
            inner = {card.instance for card in bus.cards.cards(CAPABILITY) if card.labels}
            shares = counted(await spread(bus, 1000), partial(_is_in, inner))
            tell(f"{percent} %: {shares[True]:.1f} %")
            assert abs(shares[True] - percent) <= 1


async def test_one_key_goes_to_one_instance_over_lanes_and_callers(rig: SupervisorRig) -> None:
    """ROUTE-5: consistent_hash sends each key to one instance, whoever calls; the keys spread."""
    async with rig.supervisor():
        for name in ("a", "a", "b", "b"):
            await rig.serve(agent(name))
        buses = [await connected(rig), await connected(rig)]
        strategy = {"name": "consistent_hash", "key": "account"}
        await rig.command(RouteVerb.SET, capability=CAPABILITY, strategy=strategy)
        owners: dict[int, set[str | None]] = {}
        for bus in buses:
            await told(bus, lambda entry: entry.strategy.name == "consistent_hash")
            for account in range(60):
                reply = await bus.request(CAPABILITY, {"account": account}, timeout_s=5)
                owners.setdefault(account, set()).add(reply.instance)
        assert {1} == {len(one) for one in owners.values()}
        assert 4 == len(set.union(*owners.values()))


async def test_equal_instances_stay_with_the_queue_group(rig: SupervisorRig) -> None:
    """ROUTE-5: while a lane is uniform nothing is decided here: the subject is the group's."""
    async with rig.supervisor():
        for _ in range(3):
            await rig.serve(agent("best"))
        bus = await connected(rig)
        await told(bus, lambda entry: entry.lanes[0].instances == 3)
        await bus.request(CAPABILITY, {})
        assert CAPABILITY not in bus._core.outbound.steering.special
        assert bus._core.outbound.steering.plans.of(CAPABILITY) is not None
