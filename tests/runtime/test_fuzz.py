"""Whatever bytes arrive at an agent or a caller: no crash, no hang, and one answer that says what was wrong.

The codec alone is fuzzed in `tests/wire`; here the bytes go through the whole pipeline of an agent, and the whole
reply side of a caller.
"""

import asyncio
import itertools
import random
from collections import Counter
from time import monotonic
from typing import Any

import msgpack
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from reach.bus.framing import Delivery
from reach.bus.mux import Mux
from reach.call.inflow import Inflow, StreamClocks
from reach.errors import NotOnTheWire, SchemaInvalid
from reach.faults import Reason
from reach.wire import codec, subjects
from reach.wire.envelope import Envelope
from reach.wire.frame import Frame
from reach.wire.reply import Failure, Reply
from tests.chaos.stress_rig import tell
from tests.chaos.stress_stubs import Pipeline, SilentLink
from tests.wire.test_fuzz import BODIES, FIELDS, GOOD, ODD, mutate, odd_map, read

MUTATED = 200_000
SOAKED = 1_000_000
DRAWN = 20_000
BATCH = 1000
# Without the phase that explains a failure: it traces every line.
QUICK_PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink)
NESTED: tuple[Any, ...] = (
    {"a": 1},
    {"action": "do", "params": {"text": "x"}},
    {"number": "17", "lines": [{"a": 1}]},
    {"bucket": "reach_blobs_1h", "name": "n", "size": 4},
    {"trace_id": "0af7651916cd43dd8448eb211c80319c", "hops": [{"node": "n", "at": 1}]},
    {"$bytes": "eA=="},
    [[]],
    "stream",
    "event",
)
# One odd field, or none: one choice of Hypothesis, which is what its time goes by.
ODD_FIELDS = st.sampled_from(
    [None, *((field, value) for field in FIELDS for value in (*itertools.chain(*ODD), *NESTED))]
)


def requests(chance: random.Random) -> list[bytes]:
    """Good requests to begin with: those of the contract, and ones that the handlers here understand."""
    payloads: list[dict[str, Any]] = [
        {"number": "17", "lines": [{"a": 1}], "total": 0.5},
        {"text": "Zoë", "number": 3, "blob": b"\xff\x00"},
        {"action": "do", "params": {"text": "x"}},
        {"count": 3},
    ]
    made = [
        Envelope(payload=payload, frames=frames, type=kind, timeout_ms=timeout_ms)  # type: ignore[arg-type]
        for payload in payloads
        for frames in (True, False)
        for kind in ("request", "stream", "event")
        for timeout_ms in (None, 5000)
    ]
    plain = [codec.pack(payload) for payload in payloads] + [b'{"text":"x","number":1}', b"{}"]
    found = [*GOOD, *(envelope.pack() for envelope in made), *plain]
    chance.shuffle(found)
    return found


def told(answers: list[bytes], body: bytes) -> str:
    """Say how a request was answered, once it is sure that it was answered once and in order."""
    kinds = []
    for answer in answers:
        decoded = codec.unpack(answer)
        if "ok" in decoded:
            reply = Reply.from_map(decoded)
            if not reply.ok:
                assert reply.error is not None
                assert Reason.UNMAPPED is not reply.error.reason, (body, decoded)
                assert reply.error.message, (body, decoded)
            kinds.append("ok" if reply.ok else reply.error.reason.value if reply.error else "?")
        else:
            frame = Frame.from_map(decoded)
            if frame.kind == "error":
                assert Reason.UNMAPPED is not frame.failure().reason
            kinds.append(frame.kind)
    ends = [kind for kind in kinds if kind not in {"accepted", "data", "ping"}]
    if not kinds:
        # Nobody waits for an answer to an event, and to nothing else.
        assert "event" == Envelope.read(body).type, body
        return "event"
    assert 1 == len(ends), (body, kinds)
    assert kinds[-1] == ends[0], (body, kinds)
    return ends[0]


async def through(pipeline: Pipeline, bodies: list[bytes], ended: Counter[str]) -> None:
    for answers, body in zip(await pipeline.answers_to(bodies), bodies, strict=True):
        ended[told(answers, body)] += 1
    assert 0 == pipeline.inbound.inflight == len(pipeline.inbound._by_message)
    assert [0] * len(pipeline.served) == [one.running for one in pipeline.served]


async def damage(number: int, seed: int) -> Counter[str]:
    """Send so many damaged requests through the pipeline; how they ended."""
    chance = random.Random(seed)
    good = requests(chance)
    pipeline = Pipeline()
    ended: Counter[str] = Counter()
    began = monotonic()
    for _ in range(number // BATCH):
        await through(pipeline, [mutate(chance.choice(good), chance) for _ in range(BATCH)], ended)
    tell(f"{number} damaged requests in {monotonic() - began:.1f} s: {dict(ended.most_common(8))}")
    return ended


async def test_damaged_requests_are_answered_or_refused() -> None:
    """Promise 1: 200 000 damaged requests to an agent: each is answered once, or refused in words; nothing is left."""
    ended = await damage(MUTATED, seed=3)
    assert MUTATED == sum(ended.values())
    assert min(ended["ok"], ended["SCHEMA"]) > MUTATED // 100


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_a_million_damaged_requests_are_answered_or_refused() -> None:
    """The same, a million times, from another beginning each run."""
    await damage(SOAKED, seed=random.SystemRandom().randrange(2**32))


@pytest.mark.parametrize("fields", [1, 6])
async def test_nearly_right_requests_are_answered_or_refused(fields: int) -> None:
    """20 000 envelopes in which one field, or any number, is odd: answered once, or refused in words."""
    chance = random.Random(4)
    good = [codec.unpack(data) for data in requests(chance)]
    pipeline = Pipeline()
    ended: Counter[str] = Counter()
    for _ in range(DRAWN // BATCH):
        bodies = []
        for index in range(BATCH):
            body = {**chance.choice(good), "message_id": f"m{index}", "version": 1}
            body.setdefault("payload", odd_map(chance))
            odd = odd_map(chance)
            body.update(list(odd.items())[:fields])
            bodies.append(msgpack.packb(body))
        await through(pipeline, bodies, ended)
    tell(f"{DRAWN} nearly right requests: {dict(ended.most_common(8))}")
    assert DRAWN == sum(ended.values())
    assert min(ended["ok"], ended["SCHEMA"]) > DRAWN // 20


class Drawn:
    """What Hypothesis draws goes through one pipeline on one loop: a loop an example would cost more than the rest."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._run = runner.get_loop().run_until_complete
        self._pipeline = self._run(self._fresh())
        self.ended: Counter[str] = Counter()

    async def _fresh(self) -> Pipeline:
        return Pipeline()

    def send(self, body: dict[str, Any]) -> None:
        """Read a body by the codec alone, and send it to a capability of each kind.

        As an envelope, as bare parameters, and as JSON if it can be.
        """
        whole = {"version": 1, "message_id": "m", "payload": {}, **body}
        packed = msgpack.packb(whole)
        try:
            as_json = codec.pack_json(whole)
        except NotOnTheWire:
            as_json = packed
        bodies = [packed, msgpack.packb(body), as_json, packed]
        for data in bodies[:3]:
            read(data)
        try:
            self._run(through(self._pipeline, bodies, self.ended))
        except BaseException:
            self._pipeline = self._run(self._fresh())  # What the next example meets is none of this one's.
            raise


def draw(bodies: st.SearchStrategy[dict[str, Any]], examples: int) -> None:
    """Let Hypothesis choose so many bodies, each read by the codec alone and sent through the pipeline."""
    count = 0
    with asyncio.Runner() as runner:
        drawn = Drawn(runner)

        @given(body=bodies)
        @settings(max_examples=examples, deadline=None, phases=QUICK_PHASES)
        def send(body: dict[str, Any]) -> None:
            nonlocal count
            count += 1
            drawn.send(body)

        send()
    tell(f"{count} bodies that Hypothesis chose: {dict(drawn.ended.most_common(8))}")
    assert examples <= count


def test_what_hypothesis_finds_odd_is_answered_or_refused() -> None:
    """Promise 1: 20 000 examples, each a body with up to two odd fields: answered once, or refused in words."""
    draw(st.tuples(ODD_FIELDS, ODD_FIELDS).map(lambda some: dict(filter(None, some))), DRAWN)


def test_what_hypothesis_nests_is_answered_or_refused() -> None:
    """The same with deep bodies of any values, which take longer to draw."""
    draw(BODIES, 300)


@pytest.mark.soak
def test_what_hypothesis_nests_in_the_long_run() -> None:
    """The same, 20 000 times."""
    draw(BODIES, DRAWN)


# ------------------------------------------------------------------------------------------------ the caller's side


def answers(chance: random.Random) -> list[bytes]:
    """Good answers to begin with: those of the contract, and each kind of frame."""
    frames: list[tuple[int, Any, Any]] = [
        (0, "accepted", {"instance": "x-aaaaaaaa", "generation": 7, "provider": "x"}),
        (1, "data", {"a": [1, b"2"]}),
        (1, "ping", None),
        (2, "end", {"latency_ms": 1.5}),
        (1, "error", Failure.of(Reason.HANDLER_ERROR).to_map()),
    ]
    found = [*GOOD, *(codec.pack(Frame("m", seq, kind, body).to_map()) for seq, kind, body in frames)]
    found += [codec.pack(Reply(ok=True, data={"x": 1}, provider="x", instance="x-aaaaaaaa").to_map())]
    chance.shuffle(found)
    return found


async def answer_badly(number: int, seed: int) -> Counter[str]:
    """Hand so many damaged answers, frames and notices to a caller, and see that each call ends in words."""
    chance = random.Random(seed)
    good = answers(chance)
    link: Any = SilentLink()
    mux = Mux(link)
    ended: Counter[str] = Counter()
    now = asyncio.get_running_loop().time
    for index in range(number // 4):
        pending = mux.open("m", "fuzz.echo", subjects.cap("fuzz.echo"), now=now(), deadline=now() + 60)
        mux.send(pending, b"{}", watch=False)
        inflow = None
        if index % 3 == 0:
            inflow = Inflow(clocks=StreamClocks(), deadline=now() + 60, grant=lambda _size: None)
            pending.on_frame = inflow.put
        for _ in range(4):
            data = chance.choice(good)
            data = data if chance.random() < 0.5 else mutate(data, chance)
            where = b"%b.%b" % (link.inbox.encode(), pending.token if chance.random() < 0.95 else b"zz")
            headers = {"Status": chance.choice(["503", "x"])} if chance.random() < 0.02 else None
            mux._on_message(Delivery(where, b"", data, headers, now()))
        if index % 50 == 0:
            mux._on_gone(Delivery(b"reach.gone.x-aaaaaaaa.7", b"", b"", None, now()))
            mux._on_denied(
                mutate(b"nats: permissions violation for publish to 'cap.fuzz.echo'", chance).decode("latin1")
            )
        if pending.future.done():
            outcome = pending.future.result()
            failure = outcome if isinstance(outcome, Failure) else outcome.error
            ended["ok" if failure is None else failure.reason.value] += 1
            assert failure is None or failure.message
        else:
            ended["still open"] += 1
        if inflow is not None:
            inflow.settle(Failure.of(Reason.CANCELLED))
            while (await inflow.next_data())[0]:
                pass
        mux.close_one(pending) if index % 2 else mux.cancel(pending)
    assert 0 == len(mux) == len(mux._by_instance)
    mux.close()
    await asyncio.sleep(0)
    tell(f"{number} damaged answers: {dict(ended.most_common(8))}")
    return ended


async def test_damaged_answers_end_the_call_or_are_ignored() -> None:
    """Promise 1: 100 000 damaged answers and frames to a caller: none breaks the read loop, calls end in words."""
    ended = await answer_badly(100_000, seed=5)
    assert {"ok", "NON_JSON_BODY", "still open"} <= ended.keys()


@pytest.mark.soak
async def test_a_million_damaged_answers() -> None:
    """The same, a million times, from another beginning each run."""
    await answer_badly(SOAKED, seed=random.SystemRandom().randrange(2**32))


async def test_every_refusal_of_bytes_names_what_is_wrong() -> None:
    """ERR-6: what is no request is refused as SCHEMA_INVALID, executed=no, with a message that is not empty."""
    pipeline = Pipeline()
    bodies = [
        b"\x93\x01\x02\x03",
        b"{",
        b"\xc1",
        b'{"a":NaN}',
        b"hello",
        msgpack.packb("text"),
        b"\x81\x01\x02",
    ]
    for answered, body in zip(await pipeline.answers_to(bodies), bodies, strict=True):
        (answer,) = answered
        error = Reply.from_map(codec.unpack(answer)).error
        assert error is not None, body
        assert (SchemaInvalid.code, "no") == (error.code, error.executed.value)
        assert len(error.message) > 10
