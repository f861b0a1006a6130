"""What is measured, each at its best: uvloop, logging off, the same users of the same server.

A contender is two async context managers: the side that answers, and the side that calls. Bare nats-py is
the line that all others are held against: it does nothing but send bytes back.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Final

import reach
from bench.load import CALL_TIMEOUT_S, Call, WrongReply, payload_of
from reach.bus.keys import Role
from reach.bus.settings import Settings, resolve
from reach.wire import codec, subjects

PAYLOAD: Final = payload_of()
BODY: Final = codec.pack(PAYLOAD)

ECHO: Final = "bench.echo"
BROKEN: Final = "bench.broken"
_MOST_BROKEN: Final = 100
PROVIDER: Final = "bench-echo"
MAX_CONCURRENCY: Final = 4096

_OURS: Final = "agent-reach"  # Also from a checkout that is not installed.
_BARE: Final = "cap.bench.nats"
_FASTSTREAM: Final = "cap.bench.faststream"

Side = Callable[[], AbstractAsyncContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to call.

    Attributes:
        name: On the command line.
        label: In tables.
        distributions: Whose versions say what was measured.
        answers: Holds the side that answers.
        calls: Holds the side that calls, and gives `Call`.
    """

    name: str
    label: str
    distributions: tuple[str, ...]
    answers: Callable[[], AbstractAsyncContextManager[None]]
    calls: Callable[[], AbstractAsyncContextManager[Call]]

    def versions(self) -> dict[str, str]:
        """Give the versions of what is measured. Raises `PackageNotFoundError` where it is not installed."""
        return {
            name: reach.__version__ if name == _OURS else metadata.version(name)
            for name in self.distributions
        }


def _settings(role: Role) -> Settings:
    """Give the local server's of this process's state folder (REACH_HOME)."""
    return resolve(role=role)


# ----------------------------------------------------------------------------------------- bare nats-py


@asynccontextmanager
async def _nats_answers() -> AsyncIterator[None]:
    import nats  # noqa: PLC0415 - each process imports what it measures, and nothing else
    from nats.aio.msg import Msg  # noqa: PLC0415 - as above

    connection = await nats.connect(**_settings(Role.AGENT).to_nats_options())

    async def echo(message: Msg) -> None:
        await message.respond(message.data)

    await connection.subscribe(_BARE, queue=subjects.QUEUE, cb=echo)
    await connection.flush()
    try:
        yield
    finally:
        await connection.close()


@asynccontextmanager
async def _nats_calls() -> AsyncIterator[Call]:
    import nats  # noqa: PLC0415 - as above

    connection = await nats.connect(**_settings(Role.CALLER).to_nats_options())

    async def call() -> None:
        answer = await connection.request(_BARE, BODY, timeout=CALL_TIMEOUT_S)
        if answer.data != BODY:
            raise WrongReply(f"{len(answer.data)} bytes came back, not the {len(BODY)} that were sent")

    try:
        yield call
    finally:
        await connection.close()


# ------------------------------------------------------------------------------------------- FastStream


def _broker(role: Role) -> Any:
    from faststream.nats import NatsBroker  # noqa: PLC0415 - as above
    from faststream.nats.security import NatsNKey  # noqa: PLC0415 - as above

    settings = _settings(role)
    seed_file = settings.credentials.nkey_file
    if seed_file is None:
        raise RuntimeError("the benchmark's server is the embedded one, whose logins are keys")
    return NatsBroker(settings.servers, security=NatsNKey.from_file(seed_file), logger=None)


@asynccontextmanager
async def _faststream_answers() -> AsyncIterator[None]:
    broker = _broker(Role.AGENT)

    @broker.subscriber(_FASTSTREAM, queue=subjects.QUEUE)  # type: ignore[untyped-decorator]  # Any, see _broker
    async def echo(body: dict[str, str]) -> dict[str, str]:
        return body

    await broker.start()
    try:
        yield
    finally:
        await broker.stop()


@asynccontextmanager
async def _faststream_calls() -> AsyncIterator[Call]:
    broker = _broker(Role.CALLER)
    await broker.connect()

    async def call() -> None:
        answer = await broker.request(PAYLOAD, _FASTSTREAM, timeout=CALL_TIMEOUT_S)
        if (found := await answer.decode()) != PAYLOAD:
            raise WrongReply(f"{found!r} came back")

    try:
        yield call
    finally:
        await broker.stop()


# ------------------------------------------------------------------------------------------------ Reach


@asynccontextmanager
async def _reach_answers() -> AsyncIterator[None]:
    import asyncio  # noqa: PLC0415 - as above

    from reach.runtime.agent import Agent  # noqa: PLC0415 - as above

    agent = Agent(PROVIDER)

    @agent.capability(ECHO, idempotent=True, max_concurrency=MAX_CONCURRENCY)
    async def echo(params: dict[str, Any]) -> dict[str, Any]:
        return params

    @agent.capability(BROKEN)
    async def broken(params: dict[str, Any]) -> None:
        del params
        raise RuntimeError("this one always fails")

    ready, stop = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(
            agent.serve(settings=_settings(Role.AGENT), stop=stop, ready=lambda _instance: ready.set())
        )
        await ready.wait()
        try:
            yield
        finally:
            stop.set()


@asynccontextmanager
async def _reach_calls() -> AsyncIterator[Call]:
    from reach.call.client import connect  # noqa: PLC0415 - as above

    async with connect(settings=_settings(Role.CALLER)) as bus:

        async def call() -> None:
            reply = await bus.request(ECHO, PAYLOAD, timeout_s=CALL_TIMEOUT_S)
            if not reply.ok:
                raise WrongReply(f"it failed: {reply.error}")
            if reply.data != PAYLOAD:
                raise WrongReply(f"{reply.data!r} came back")
            if reply.provider != PROVIDER or not reply.instance or reply.attempt < 1 or not reply.reach_id:
                raise WrongReply(f"it does not say who answered: {reply}")

        async def breaks() -> int:
            """Fail calls until the lane's breaker refuses one; how many it took, 0 when it never did."""
            for made in range(1, _MOST_BROKEN):
                reply = await bus.request(BROKEN, PAYLOAD, retry=False)
                if reply.error is not None and reply.error.reason.value == "BREAKER_OPEN":
                    return made
            return 0

        call.breaks = breaks  # type: ignore[attr-defined]  # for the proof that it was on
        yield call


REACH: Final = Contender("reach", "Reach", (_OURS,), _reach_answers, _reach_calls)
NATS: Final = Contender("nats", "nats-py request()", ("nats-py",), _nats_answers, _nats_calls)
FASTSTREAM: Final = Contender(
    "faststream", "FastStream RPC", ("faststream",), _faststream_answers, _faststream_calls
)
CONTENDERS: Final = {one.name: one for one in (NATS, REACH, FASTSTREAM)}
"""Those in Python. Moleculer, in Node, is driven by `bench/moleculer/peer.js` through the same channel."""
