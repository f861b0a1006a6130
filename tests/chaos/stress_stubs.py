"""A pipeline without a network: what it publishes is kept.

So hundreds of thousands of damaged messages can be handed to it as if the read loop did.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

from pydantic import BaseModel

import reach
from reach.bus.brokertime import BrokerTime
from reach.bus.framing import Delivery
from reach.errors import LinkDown, UpstreamFailure
from reach.faults import Reason
from reach.observe.metrics import Metrics
from reach.runtime.answer import Answers
from reach.runtime.inbound import Inbound
from reach.runtime.job import Served
from reach.runtime.offer import of_its_own
from reach.runtime.once import Once
from reach.runtime.stall import StallGuard


class SilentLink:
    """Stands for a connection: it keeps what is published by where it went, and brings nothing."""

    def __init__(self) -> None:
        self.inbox = "reply.fuzz"
        self.max_payload = 1024 * 1024
        self.connected = True
        self.sent: dict[str, list[bytes]] = {}
        self.link = self
        self.denials: list[Callable[[str], None]] = []
        self.broker_time = BrokerTime()
        self.settings = SimpleNamespace(jetstream_domain="")

    def send(self, *_: object) -> None:
        """Have no store of keys: a link that is down."""
        raise LinkDown

    send_with_headers = send

    def publish(self, subject: str, data: bytes, *, reply: str = "", headers: object = None) -> None:
        self.sent.setdefault(subject, []).append(data)

    def put(self, line: bytes) -> None:
        """Take a framed message, and forget it."""

    def write_out(self) -> None:
        """Have nothing to hand on."""

    def subscribe(self, *_: object, **__: object) -> Any:
        return SimpleNamespace(drop=lambda: None)

    def on_state(self, _: object) -> None: ...

    def off_state(self, _: object) -> None: ...


class NoBlobs:
    """Stands for a blob store that has none of them."""

    async def get(self, _ref: dict[str, Any], *, limit: int) -> bytes:
        raise UpstreamFailure("there is no such blob", reason=Reason.STREAM_CUT)

    async def put(self, data: bytes, *, bucket: str) -> dict[str, Any]:
        raise UpstreamFailure("the store is full", reason=Reason.BAD_RESULT)


class Invoice(BaseModel):
    """What a typed handler asks for."""

    number: str
    lines: list[dict[str, int]] = []
    total: float | None = None


agent = reach.Agent("fuzzed")


@agent.capability("fuzz.model", max_concurrency=100_000)
async def model(params: Invoice, ctx: reach.Context) -> dict[str, Any]:
    return {"number": params.number, "left": ctx.time_left_s, "source": ctx.source, "trace": ctx.trace_id}


@agent.capability("fuzz.words", max_concurrency=100_000)
async def words(text: str = "", number: int = 0, blob: bytes = b"") -> str:
    return text[:number] + str(len(blob))


@agent.capability("fuzz.echo", max_concurrency=100_000)
async def echo(params: dict) -> dict:  # type: ignore[type-arg]  # the plainest handler there is
    return params


@agent.capability("fuzz.parts", max_concurrency=100_000)
async def parts(count: int = 2) -> AsyncIterator[int]:
    for number in range(min(count, 5)):
        yield number


class Pipeline:
    """The serving side of an instance, and what it answered."""

    def __init__(self) -> None:
        self.link = SilentLink()
        link: Any = self.link
        blobs: Any = NoBlobs()
        self.served: list[Served] = [of_its_own(one) for one in agent._served.values()]
        answers = Answers(link, blobs, provider="fuzzed", instance="fuzzed-aaaaaaaa", generation=1)
        bus: Any = SimpleNamespace(metrics=Metrics())
        self.inbound = Inbound(
            answers=answers,
            blobs=blobs,
            bus=bus,
            guard=StallGuard(link),
            once=Once(link, blobs, agent_id="fuzzed", instance="fuzzed-aaaaaaaa", generation=1),
            broker_time=BrokerTime(),
            inbox="reply.fuzzed.reader",
        )
        self._loop = asyncio.get_running_loop()

    async def answers_to(self, bodies: list[bytes], *, subject: str = "cap.x") -> list[list[bytes]]:
        """Hand over each body as a request to a capability in turn; what was answered to each."""
        self.link.sent.clear()
        for number, body in enumerate(bodies):
            served = self.served[number % len(self.served)]
            self.inbound.receive(
                served, Delivery(subject.encode(), b"r.%d" % number, body, None, self._loop.time())
            )
        assert await self.inbound.wait_idle(20.0), "requests did not end"
        await asyncio.sleep(0)
        return [self.link.sent.get(f"r.{number}", []) for number in range(len(bodies))]
