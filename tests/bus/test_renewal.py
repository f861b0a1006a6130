"""Replacing a link that still works."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

from reach.bus.connection import Connection, LinkState
from reach.bus.keys import Role, key_path, new_seed


async def test_a_replaced_login_is_used_without_losing_a_call(system, tmp_path: Path, until) -> None:
    """Case 1: a login that is replaced on disk leads to a new link, and no request is lost or answered twice."""
    own = tmp_path / "agent.nk"
    shutil.copy(key_path(system.home / "keys", Role.AGENT), own)
    given = system.settings(Role.AGENT)
    settings = replace(given, credentials=replace(given.credentials, nkey_file=own))
    agent = await Connection.open(settings, role="agent")
    states: list[LinkState] = []
    agent.on_state(states.append)
    served: list[bytes] = []
    try:

        def answer(delivery) -> None:
            served.append(delivery.data)
            agent.publish(delivery.reply, delivery.data)

        for subject in ("cap.renew.queue", "inst.x-abcdefgh.renew.plain"):
            queue = "reach" if subject.startswith("cap.") else ""
            agent.subscribe(subject, answer, queue=queue, durable=not queue)
        await agent.flush()
        async with system.connection() as caller:
            asked: list[bytes] = []

            async def call(subject: str, lane: int) -> None:
                number = 0
                while agent.renewals < 3:
                    body = f"{lane}-{number}".encode()
                    asked.append(body)
                    assert await caller.request(subject, body, timeout_s=10) == body
                    number += 1

            calls = [
                asyncio.create_task(call(subject, lane))
                for lane, subject in enumerate(["cap.renew.queue", "inst.x-abcdefgh.renew.plain"] * 4)
            ]
            for done in range(1, 4):
                fresh = own.with_suffix(".new")
                shutil.copy(own, fresh)
                fresh.replace(own)
                await until(lambda done=done: agent.renewals >= done)
            await asyncio.gather(*calls)
        assert sorted(served) == sorted(asked)
        assert (agent.epoch, states) == (4, [])
    finally:
        await agent.close()


async def test_a_login_that_cannot_be_used_leaves_the_old_link(system, tmp_path: Path, until) -> None:
    """Case 1: when the new login is refused, the link that works stays."""
    own = tmp_path / "caller.nk"
    shutil.copy(key_path(system.home / "keys", Role.CALLER), own)
    given = system.settings(Role.CALLER)
    settings = replace(given, credentials=replace(given.credentials, nkey_file=own))
    caller = await Connection.open(settings, role="caller")
    try:
        fresh = own.with_suffix(".new")
        fresh.write_bytes(new_seed() + b"\n")
        fresh.chmod(0o600)
        fresh.replace(own)
        await until(lambda: caller.last_error != "")
        await caller.flush()
        assert (caller.connected, caller.epoch, caller.renewals) == (True, 1, 0)
    finally:
        await caller.close()
