"""A canary: secrets of an agent's process, in every place where code keeps them, are found nowhere outside (ERR-5).

What crosses the wire is captured on the bus; records, logs and what a program prints are read too. What may be
said is what a handler says on purpose, as the message of a ReachError.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

import reach
from reach.bus.keys import Role
from reach.bus.settings import resolve
from tests.contract.tap import Tap
from tests.runtime.fleet import Fleet, eventually

SECRET = "canary-7f3a-hunter2"


class Vault(BaseModel):
    """A model whose own validator talks too much."""

    pin: int
    owner: str = ""

    @field_validator("owner")
    @classmethod
    def known(cls, owner: str) -> str:
        if owner:
            raise ValueError(f"{owner} is not {SECRET}")
        return owner


class Loud(Exception):
    """Its text and its repr are the secret."""

    def __str__(self) -> str:
        return SECRET

    def __repr__(self) -> str:
        return f"Loud({SECRET!r}, url='nats://user:{SECRET}@host?token={SECRET}')"


def canary_agent() -> reach.Agent:
    agent = reach.Agent("canary")
    token = SECRET

    @agent.capability("canary.raise")
    async def raising() -> None:
        password = token
        raise RuntimeError(f"login failed for nats://admin:{password}@db?key={password}")

    @agent.capability("canary.repr")
    async def with_repr() -> None:
        raise Loud

    @agent.capability("canary.chain")
    async def chained() -> None:
        try:
            raise Loud
        except Loud as error:
            raise KeyError(token) from error

    @agent.capability("canary.group")
    async def grouped() -> None:
        raise ExceptionGroup(token, [Loud(), ValueError(token)])

    @agent.capability("canary.undone")
    async def undone() -> None:
        raise reach.NotExecuted(token)

    @agent.capability("canary.thread")
    def in_thread() -> None:
        raise RuntimeError(token)

    @agent.capability("canary.exit")
    async def leaving() -> None:
        raise SystemExit(token)

    offer_results(agent)
    return agent


def offer_results(agent: reach.Agent) -> None:
    token = SECRET

    @agent.capability("canary.parts")
    async def parts() -> AsyncIterator[str]:
        yield "fine"
        raise Loud

    @agent.capability("canary.thread_parts")
    def thread_parts() -> Iterator[str]:
        yield "fine"
        raise Loud

    @agent.capability("canary.bad")
    async def bad_result() -> int:
        return token  # type: ignore[return-value]

    @agent.capability("canary.vault")
    async def bad_model() -> Vault:
        return {"pin": token}  # type: ignore[return-value]

    @agent.capability("canary.object")
    async def strange() -> Any:
        return {"token": token, "loud": Loud(), "deep": [{"value": {Loud()}}]}

    @agent.capability("canary.part")
    async def bad_part() -> AsyncIterator[int]:
        yield token  # type: ignore[misc]

    @agent.capability("canary.enter")
    async def enter(params: Vault) -> None:
        return None

    @agent.capability("canary.hang")
    async def hang() -> None:
        kept = token
        await asyncio.sleep(30)
        raise RuntimeError(kept)


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("canary.raise", {}),
    ("canary.repr", {}),
    ("canary.chain", {}),
    ("canary.group", {}),
    ("canary.undone", {}),
    ("canary.thread", {}),
    ("canary.exit", {}),
    ("canary.parts", {}),
    ("canary.thread_parts", {}),
    ("canary.bad", {}),
    ("canary.vault", {}),
    ("canary.object", {}),
    ("canary.part", {}),
    ("canary.hang", {}),
]


async def failing_call(bus: reach.Bus, capability: str, params: dict[str, Any]) -> list[str]:
    """Make one call in all three shapes; what a program could see of its failures."""
    timeout_s = 0.3 if capability == "canary.hang" else 5.0
    reply = await bus.request(capability, params, timeout_s=timeout_s)
    assert not reply.ok, capability
    seen = [repr(reply)]
    try:
        async for _ in bus.stream(capability, params, timeout_s=timeout_s):
            pass
    except reach.ReachError as error:
        seen.append(f"{error!s} {error!r} {error.__cause__!r}")
    seen += [repr(one) async for one in bus.broadcast(capability, params, timeout_s=1.0)]
    return seen


async def test_no_secret_of_a_handler_reaches_a_caller_a_record_or_a_log(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """ERR-5: texts, reprs, causes, locals and bad results of handlers stay inside; the place that raised is logged."""
    tap = await Tap(await fleet.connection(Role.PLATFORM)).ready()
    await fleet.serve(canary_agent(), drain_s=0.2)
    bus = await fleet.connect()
    with caplog.at_level(logging.DEBUG):
        failed = await asyncio.gather(*(failing_call(bus, *call) for call in CALLS))
        seen = [text for texts in failed for text in texts]
        client = await fleet.stranger()
        for capability, _ in CALLS[:-1]:
            seen.append(repr((await client.request(f"cap.{capability}", b"{}", timeout=5)).data))
        await tap.checked()
    assert SECRET not in "\n".join(seen)
    assert SECRET.encode() not in tap.bodies
    assert SECRET not in "\n".join(str(record.to_map()) for record in fleet.records)
    assert SECRET not in caplog.text
    assert "RuntimeError at " in caplog.text
    assert "in raising" in caplog.text
    assert "Traceback" not in caplog.text


async def test_no_refused_parameter_is_echoed(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """ERR-5: a validation error names fields and kinds, never values: the caller's secrets, and the validator's."""
    tap = await Tap(await fleet.connection(Role.PLATFORM), "reply.>", "_INBOX.>").ready()
    await fleet.serve(canary_agent())
    bus = await fleet.connect()
    client = await fleet.stranger()
    wrong: list[dict[str, Any]] = [
        {"pin": SECRET},
        {"pin": 1, "owner": SECRET},
        {"pin": {SECRET: SECRET}},
        {"pin": [SECRET]},
    ]
    with caplog.at_level(logging.DEBUG):
        for params in wrong:
            reply = await bus.request("canary.enter", params)
            assert reply.error is not None
            assert "SCHEMA" == reply.error.reason
            assert SECRET not in repr(reply)
            await client.request("cap.canary.enter", json.dumps(params).encode(), timeout=5)
        await tap.checked()
    assert SECRET.encode() not in tap.bodies
    assert SECRET not in caplog.text
    assert SECRET not in "\n".join(str(record.to_map()) for record in fleet.records)


PROGRAM = """
import logging, os, sys
import reach

def raises(params: dict) -> None:
    raise RuntimeError(os.environ["API_KEY"])

def dies(params: dict) -> None:
    secret = os.environ["API_KEY"]
    os.kill(os.getpid(), 9)

if __name__ == "__main__":
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    agent = reach.Agent("printing")

    @agent.capability("printing.raise")
    async def raising() -> None:
        key = os.environ["API_KEY"]
        raise RuntimeError(key)

    @agent.capability("printing.thread")
    def in_thread() -> None:
        raise ValueError(os.environ["API_KEY"])

    agent.capability("printing.process", executor="process")(raises)
    agent.capability("printing.death", executor="process")(dies)
    agent.run()
"""


async def test_an_agents_process_prints_no_secret(fleet: Fleet) -> None:
    """ERR-5: what a program and its worker processes print and log, DEBUG too, holds no secret of their environment."""
    tap = await Tap(await fleet.connection(Role.PLATFORM)).ready()
    program = await fleet.program(PROGRAM, API_KEY=SECRET, REACH_RECORDS="stderr")
    bus = await fleet.connect()
    for name in ("raise", "thread", "process", "death"):
        assert not (await bus.request(f"printing.{name}", timeout_s=20)).ok
    program.terminate()
    await program.ended()
    await tap.checked()
    assert "RuntimeError at" in program.printed
    assert SECRET not in program.printed
    assert SECRET.encode() not in tap.bodies


async def test_an_address_with_a_password_is_never_shown(
    unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """ERR-5: userinfo and query of an address appear in no error and no log, connecting or serving."""
    settings = resolve(f"nats://admin:{SECRET}@127.0.0.1:{unused_tcp_port}", role=Role.CALLER, env={})
    settings = replace(settings, connect_timeout_s=0.3)
    agent = reach.Agent("x")

    @agent.capability("x.y")
    async def nothing() -> None: ...

    with caplog.at_level(logging.DEBUG):
        with pytest.raises(reach.Unreachable) as connecting:
            await reach.connect(settings=settings).__aenter__()
        with pytest.raises(reach.Unreachable) as serving:
            await agent.serve(settings=settings)
    for error in (connecting.value, serving.value):
        assert SECRET not in f"{error!s} {error!r}"
        assert f"127.0.0.1:{unused_tcp_port}" in str(error)
    assert SECRET not in repr(settings)
    assert SECRET not in caplog.text


async def test_a_lost_link_tells_a_model_one_calm_sentence(fleet: Fleet) -> None:
    """ERR-4: CONN_REFUSED says neither address nor cause; whoever runs the program finds them in its log."""
    async with reach.connect(
        settings=fleet.system.settings(Role.CALLER), recorder=fleet.recorder(fleet.sink)
    ) as bus:
        pass
    error = (await bus.request("x.y", timeout_s=0.2)).error
    assert error is not None
    assert "127.0.0.1" not in error.message
    assert error.message.startswith("This capability is not available right now.")
    await eventually(lambda: fleet.records)
