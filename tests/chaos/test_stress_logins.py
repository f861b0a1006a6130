"""Logins that are replaced, and logins that expire, under load (case 1)."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from reach.bus.connection import LinkState
from reach.bus.keys import Role, key_path
from reach.call.client import Bus
from reach.wire.reply import Reply
from tests.chaos.stress_rig import NOTHING, Rig, eventually, faults_of, left_of, tell
from tests.chaos.stress_servers import Users

SHORT_S = 4.0
"""How long a login lasts that is to end: long enough to be taken up on a slow machine."""


class Load:
    """A few calls at any time, half of them writes, until it is over."""

    def __init__(self, bus: Bus, *, lanes: int = 16, timeout_s: float = 20.0) -> None:
        self.bus = bus
        self.replies: dict[str, Reply] = {}
        self.over = False
        self._lanes = lanes
        self._timeout_s = timeout_s
        self._numbers = count()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for lane in range(self._lanes):
                group.create_task(self._lane("write" if lane % 2 else "read"))

    async def _lane(self, kind: str) -> None:
        while not self.over:
            key = f"{kind}-{next(self._numbers)}"
            self.replies[key] = await self.bus.request(
                f"stress.{kind}", {"key": key, "seconds": 0.01}, timeout_s=self._timeout_s
            )


async def test_replacing_both_logins_under_load_loses_nothing(rig: Rig, tmp_path: Path) -> None:
    """Case 1: caller's and agent's keys are replaced, thrice: no call fails, is made again, or is done twice."""
    files = {role: tmp_path / f"own-{role}.nk" for role in (Role.CALLER, Role.AGENT)}
    for role, path in files.items():
        shutil.copy(key_path(rig.system.home / "keys", role), path)
    given = rig.system.settings(Role.CALLER)
    bus = await rig.bus(
        settings=replace(given, credentials=replace(given.credentials, nkey_file=files[Role.CALLER]))
    )
    url = given.servers[0]
    peers = await rig.agents(2, REACH_URL=url, REACH_NKEY=str(files[Role.AGENT]))
    await bus.cards.instances("stress.write")
    states: list[LinkState] = []
    bus.connection.on_state(states.append)
    load = Load(bus)
    running = asyncio.create_task(load.run())
    for turn in range(1, 4):
        for path in files.values():
            fresh = path.with_suffix(".new")
            shutil.copy(path, fresh)
            fresh.replace(path)
        for peer in peers:
            await peer.back(epoch=turn + 1)
        await eventually(lambda turn=turn: bus.connection.renewals == turn)
    load.over = True
    await running
    tell(f"{len(load.replies)} calls, 3 renewals of 3 clients")
    assert {} == faults_of(load.replies)
    assert {1} == {reply.attempt for reply in load.replies.values()}
    assert {1} == set(rig.effects.begun("write").values()) == set(rig.effects.begun("read").values())
    assert [] == states
    assert NOTHING == left_of(bus)


@pytest.fixture
def users(tmp_path: Path) -> Iterator[Users]:
    """A server whose users have logins that expire."""
    users = Users(tmp_path)
    yield users
    users.server.stop()


@pytest.fixture
async def operated(users: Users, tmp_path: Path) -> AsyncIterator[Rig]:
    """Agents and callers there."""
    rig = Rig(users, tmp_path)
    try:
        yield rig
    finally:
        await rig.close()


async def test_a_login_that_is_renewed_in_time_never_ends_the_link(operated: Rig, users: Users) -> None:
    """Case 1: JWTs of 4 s, replaced while they still hold, under load until they would have ended: nothing is lost."""
    users.issue_all()
    bus = await operated.bus()
    peer = await operated.agent()
    states: list[LinkState] = []
    bus.connection.on_state(states.append)
    load = Load(bus)
    running = asyncio.create_task(load.run())
    ends = users.issue_all(lasts_s=SHORT_S)
    await peer.back(epoch=2)
    await eventually(lambda: bus.connection.renewals == 1)
    users.issue_all(lasts_s=3600)
    await peer.back(epoch=3)
    await eventually(lambda: bus.connection.renewals == 2)
    await asyncio.sleep(max(0.0, ends + 1.5 - time.time()))
    load.over = True
    await running
    tell(f"{len(load.replies)} calls; the short login is over for {time.time() - ends:.1f} s")
    assert {} == faults_of(load.replies)
    assert {1} == set(operated.effects.begun("write").values())
    assert [] == states
    assert (3, 2) == (bus.connection.epoch, bus.connection.renewals)
    assert 3 == (await peer.status())["epoch"]
    assert "Expired" not in users.server.log


@pytest.mark.parametrize(
    "between",
    ["garbage", *(pytest.param(word, marks=pytest.mark.chaos_long) for word in ("nothing", "as it was"))],
)
async def test_after_a_login_has_expired_a_new_one_brings_everything_back(
    operated: Rig, users: Users, between: str
) -> None:
    """Case 1: the server ends the links; whatever the files hold meanwhile, a new login brings all back."""
    users.issue_all()
    bus = await operated.bus()
    peer = await operated.agent()
    heard: list[Any] = []
    bus.connection.subscribe("stress.note", heard.append)
    assert (await bus.request("stress.write", {"key": "before"})).ok
    ends = users.issue_all(lasts_s=SHORT_S)
    await peer.back(epoch=2)
    await eventually(lambda: bus.connection.renewals == 1)
    flying = asyncio.create_task(
        bus.request("stress.write", {"key": "flying", "seconds": SHORT_S + 2}, timeout_s=60)
    )
    await eventually(lambda: not bus.connection.connected)
    error = (await flying).error
    assert error is not None
    assert ("OUTCOME_UNKNOWN", "DISCONNECTED") == (error.reason.value, error.cause)
    for role in (Role.CALLER, Role.AGENT):
        if between == "garbage":
            users.write(role, "-----BEGIN NATS USER JWT-----\nx\n-----BEGIN USER NKEY SEED-----\nSUAX\n")
        elif between == "nothing":
            users.path(role).unlink()
    # In the second in which it ends a login is still taken, for a moment.
    await asyncio.sleep(max(0.0, ends + 1.2 - time.time()))
    assert not bus.connection.connected
    waits = asyncio.create_task(bus.request("stress.write", {"key": "waits"}, timeout_s=20))
    await asyncio.sleep(0.5)
    replaced = time.time()
    users.issue_all()
    assert (await waits).ok
    back_s = time.time() - replaced
    await peer.back(epoch=3)
    tell(f"a call that had waited was answered {back_s:.2f} s after the new login was there")
    assert back_s < 5.0
    assert (await bus.request("stress.write", {"key": "direct"}, target="stress")).ok
    assert 1 == len([reply async for reply in bus.broadcast("stress.read", {"key": "all"})])
    bus.connection.publish("stress.note", b"")
    await eventually(lambda: len(heard) == 1)
    assert {"before": 1, "flying": 1, "waits": 1, "direct": 1} == dict(operated.effects.begun("write"))
    assert NOTHING == left_of(bus)
