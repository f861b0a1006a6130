"""Streams from end to end: their clocks, their one end, flow control, and who is told when the reader leaves."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from time import monotonic
from typing import Any

import pytest

import reach
from reach.bus.framing import Delivery
from reach.bus.keys import Role
from reach.call.inflow import INITIAL_CREDIT
from reach.faults import Code, Executed, Reason
from reach.runtime import streaming
from reach.runtime.instance import Instance
from reach.wire import codec
from reach.wire.envelope import Envelope
from reach.wire.frame import Frame
from reach.wire.reply import Failure
from tests.runtime.fleet import Fleet, eventually


class Source:
    """An agent that yields in many ways; what it has given, and how each of its generators ended."""

    def __init__(self) -> None:
        self.given = 0
        self.ended: list[str] = []
        self.attempts = 0
        self.agent = reach.Agent("source")
        for handler in (self.numbers, self.sync, self.blocks, self.breaks, self.text, self.large):
            self.agent.capability(f"source.{handler.__name__}")(handler)
        self.agent.capability("source.flaky", idempotent=True)(self.flaky)

    async def numbers(self, count: int, pause_s: float = 0.0, first_s: float = 0.0) -> AsyncIterator[int]:
        try:
            await asyncio.sleep(first_s)
            for number in range(count):
                self.given += 1
                yield number
                if pause_s:
                    await asyncio.sleep(pause_s)
            self.ended.append("end")
        except (asyncio.CancelledError, GeneratorExit):
            self.ended.append("cancelled")
            raise

    def sync(self, count: int) -> Iterator[dict[str, int]]:
        try:
            for number in range(count):
                self.given += 1
                yield {"n": number}
        finally:
            self.ended.append("closed")

    async def blocks(self, count: int, size: int) -> AsyncIterator[bytes]:
        try:
            for _ in range(count):
                yield b"x" * size
                self.given += 1
        finally:
            self.ended.append("closed")

    async def breaks(self, after: int) -> AsyncIterator[int]:
        for number in range(after):
            yield number
        raise ValueError

    async def flaky(self, good_from: int, before: int = 0) -> AsyncIterator[str]:
        self.attempts += 1
        for _ in range(before):
            yield "early"
        if self.attempts < good_from:
            raise reach.NotExecuted
        yield "good"

    async def text(self) -> AsyncIterator[str]:
        for character in "Zoë 发票 🧾":
            yield character

    async def large(self) -> AsyncIterator[bytes]:
        yield b"x" * 2_000_000


@pytest.fixture
def source() -> Source:
    """One source."""
    return Source()


@pytest.fixture
async def instance(fleet: Fleet, source: Source) -> Instance:
    """It serves."""
    return await fleet.serve(source.agent, drain_s=0.2)


@pytest.fixture
async def bus(fleet: Fleet, instance: Instance) -> reach.Bus:
    """A caller."""
    return await fleet.connect()


async def all_of(parts: Any) -> list[Any]:
    return [part async for part in parts]


async def into(seen: list[Any], parts: Any) -> None:
    async for part in parts:
        seen.append(part)  # noqa: PERF401 - what came before a failure counts


async def test_a_stream_gives_its_parts_in_order_and_ends(bus: reach.Bus, fleet: Fleet) -> None:
    """STREAM-2: all parts, in order, then the end; one record."""
    assert list(range(500)) == await all_of(bus.stream("source.numbers", {"count": 500}))
    assert [("ok", "stream")] == [(record.outcome, record.kind) for record in fleet.records]


async def test_a_stream_without_parts_ends_cleanly(bus: reach.Bus) -> None:
    """STREAM-2: an empty stream is no failure."""
    assert [] == await all_of(bus.stream("source.numbers", {"count": 0}))


async def test_text_is_never_cut_inside_a_character(bus: reach.Bus) -> None:
    """STREAM-2: parts are whole values."""
    assert "Zoë 发票 🧾" == "".join(await all_of(bus.stream("source.text")))


async def test_a_plain_generator_streams_from_its_thread(bus: reach.Bus, source: Source) -> None:
    """A `def` with `yield` is a stream too."""
    assert [{"n": 0}, {"n": 1}, {"n": 2}] == await all_of(bus.stream("source.sync", {"count": 3}))
    assert ["closed"] == source.ended


async def test_a_stream_that_breaks_gives_what_came_and_then_the_failure(
    bus: reach.Bus, fleet: Fleet
) -> None:
    """STREAM-2: the parts before the error arrive; the error is raised once, after them, with its reach_id."""
    seen: list[int] = []
    with pytest.raises(reach.UpstreamFailure) as broke:
        await into(seen, bus.stream("source.breaks", {"after": 3}))
    assert [0, 1, 2] == seen
    assert (Reason.HANDLER_ERROR, Executed.YES) == (broke.value.reason, broke.value.executed)
    assert [(broke.value.reach_id, "failed")] == [
        (record.reach_id, record.outcome) for record in fleet.records
    ]


async def test_first_byte_has_a_clock_of_its_own(bus: reach.Bus, source: Source) -> None:
    """STREAM-1: nothing within `first_byte_s` is FIRST_BYTE, and the producer is told to stop."""
    began = monotonic()
    with pytest.raises(reach.ReachError) as late:
        await all_of(
            bus.stream(
                "source.numbers", {"count": 1, "first_s": 30.0}, clocks=reach.StreamClocks(first_byte_s=0.3)
            )
        )
    assert monotonic() - began < 1.5
    assert (Reason.OUTCOME_UNKNOWN, "FIRST_BYTE") == (late.value.reason, late.value.cause)
    await eventually(lambda: source.ended == ["cancelled"], within_s=2.0)


async def test_silence_inside_a_stream_has_a_clock_of_its_own(bus: reach.Bus, source: Source) -> None:
    """STREAM-1: more than `idle_s` between two parts is IDLE_STREAM; what had come was given."""
    seen: list[int] = []
    clocks = reach.StreamClocks(idle_s=0.3)
    with pytest.raises(reach.CallTimeout) as late:
        await into(seen, bus.stream("source.numbers", {"count": 5, "pause_s": 30.0}, clocks=clocks))
    assert ([0], Reason.IDLE_STREAM, Executed.MAYBE) == (seen, late.value.reason, late.value.executed)
    await eventually(lambda: source.ended == ["cancelled"], within_s=2.0)


async def test_the_whole_stream_has_a_deadline(bus: reach.Bus, source: Source) -> None:
    """STREAM-1: parts that keep coming do not move the whole's deadline (case 23)."""
    began = monotonic()
    with pytest.raises(reach.CallTimeout) as late:
        await all_of(
            bus.stream(
                "source.numbers",
                {"count": 10_000, "pause_s": 0.02},
                clocks=reach.StreamClocks(max_duration_s=0.6),
            )
        )
    assert 0.4 < monotonic() - began < 1.5
    assert Reason.DEADLINE is late.value.reason
    await eventually(lambda: source.ended == ["cancelled"], within_s=2.0)


async def test_a_stream_has_its_own_whole_and_not_a_requests_timeout(fleet: Fleet, bus: reach.Bus) -> None:
    """STREAM-1: 120 s is the whole of a stream, from its first call on; `timeout_s` asks for less."""
    agent = reach.Agent("looks")

    @agent.capability("looks.left")
    async def left(ctx: reach.Context) -> AsyncIterator[float]:
        yield ctx.time_left_s

    await fleet.serve(agent)
    first, second = await all_of(bus.stream("looks.left")), await all_of(bus.stream("looks.left"))
    asked = await all_of(bus.stream("looks.left", timeout_s=7))
    assert 110 < first[0] <= 120
    assert 110 < second[0] <= 120
    assert 6 < asked[0] <= 7


async def test_a_reader_that_is_busy_is_no_silence(bus: reach.Bus) -> None:
    """STREAM-1: time in which the reader does not look is not the producer's."""
    seen: list[int] = []
    clocks = reach.StreamClocks(idle_s=0.25, first_byte_s=0.5)
    async for part in bus.stream("source.numbers", {"count": 3}, clocks=clocks):
        seen.append(part)
        await asyncio.sleep(0.4)
    assert [0, 1, 2] == seen


async def test_leaving_the_loop_early_ends_the_producer(
    bus: reach.Bus, source: Source, instance: Instance, fleet: Fleet
) -> None:
    """CALL-5: `break` is a cancellation: the generator is closed, its slot free, and there is one record."""
    async for part in bus.stream("source.numbers", {"count": 100_000, "pause_s": 0.001}):
        if part == 3:
            break
    await eventually(lambda: source.ended == ["cancelled"], within_s=2.0)
    await eventually(lambda: instance.inflight == 0)
    assert ["cancelled"] == [record.outcome for record in fleet.records]
    assert 0 == bus.pending


READER = """
import asyncio
import reach

async def read() -> None:
    async with reach.connect() as bus:
        async for part in bus.stream("source.numbers", {"count": 1_000_000, "pause_s": 0.01}, timeout_s=100):
            print("reader serves", part, flush=True)
            await asyncio.sleep(3600 if READS_ON == 0 else 0)

asyncio.run(read())
"""


@pytest.mark.parametrize("reads_on", [0, 1])
async def test_a_reader_that_was_killed_gives_the_producers_place_back(
    source: Source, instance: Instance, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, reads_on: int
) -> None:
    """Case 10: a killed reader cannot say that it left; its stream ends long before its deadline all the same,
    whether the producer waits for it or goes on sending.
    """
    monkeypatch.setattr(streaming, "PING_S", 0.2)
    program = fleet.start(f"READS_ON = {reads_on}\n{READER}", name="reader")
    await program.ready()
    await asyncio.sleep(1.0)  # Pings go unanswered while it lives: that harms nobody.
    assert (1, []) == (instance.inflight, source.ended)
    program.kill()
    await eventually(lambda: source.ended == ["cancelled"], within_s=5.0)
    await eventually(lambda: instance.inflight == 0)


async def test_closing_a_stream_before_its_first_part_ends_the_producer(
    bus: reach.Bus, source: Source, fleet: Fleet
) -> None:
    """CALL-5: a reader that is cancelled while it waits for the first part is noticed, too."""
    reading = asyncio.create_task(all_of(bus.stream("source.numbers", {"count": 1, "first_s": 30.0})))
    await asyncio.sleep(0.1)
    reading.cancel()
    await asyncio.wait({reading})
    await eventually(lambda: source.ended == ["cancelled"], within_s=2.0)
    assert ["cancelled"] == [record.outcome for record in fleet.records]


async def test_a_plain_generator_is_closed_when_its_reader_leaves(
    bus: reach.Bus, source: Source, instance: Instance
) -> None:
    """CALL-5: a generator in a thread is closed at its next part, and gives its slot back."""
    async for _ in bus.stream("source.sync", {"count": 10_000_000}):
        break
    await eventually(lambda: source.ended == ["closed"], within_s=2.0)
    await eventually(lambda: instance.served[1].running == 0)
    assert source.given < 100_000


async def test_a_slow_reader_slows_the_producer(bus: reach.Bus, source: Source, instance: Instance) -> None:
    """STREAM-3: at most the credit (256 KiB) and one part are under way, however slow the reader is."""
    size = 32 * 1024
    taken = 0
    async for _ in bus.stream("source.blocks", {"count": 200, "size": size}):
        taken += 1
        if taken % 20 == 0:
            await asyncio.sleep(0.02)
            ahead = (source.given - taken) * size
            assert ahead <= INITIAL_CREDIT + 2 * size
    assert (200, 200) == (taken, source.given)


async def test_a_reader_that_stands_still_holds_the_producer(bus: reach.Bus, source: Source) -> None:
    """STREAM-3: without credit nothing is produced; when the reader goes on, all of it comes."""
    parts = bus.stream("source.blocks", {"count": 100, "size": 64 * 1024})
    await anext(parts)
    await asyncio.sleep(0.2)
    held = source.given
    await asyncio.sleep(0.2)
    assert held == source.given
    assert held <= 6
    assert 99 == len(await all_of(parts))


async def test_one_slow_reader_does_not_slow_another(bus: reach.Bus) -> None:
    """STREAM-3: credit is each stream's own."""
    slow = bus.stream("source.blocks", {"count": 100, "size": 64 * 1024})
    await anext(slow)
    async with asyncio.timeout(5):
        assert 100 == len(await all_of(bus.stream("source.blocks", {"count": 100, "size": 64 * 1024})))
    await slow.aclose()


async def test_a_failure_before_the_first_part_is_tried_again(bus: reach.Bus, source: Source) -> None:
    """STREAM-1, RETRY-3: before the first frame a stream is retried like any call."""
    assert ["good"] == await all_of(bus.stream("source.flaky", {"good_from": 2}))
    assert 2 == source.attempts


async def test_a_failure_after_the_first_part_is_not_tried_again(bus: reach.Bus, source: Source) -> None:
    """RETRY-3, case 24: after a part reached the caller a retry would repeat it."""
    seen: list[str] = []
    with pytest.raises(reach.UpstreamFailure):
        await into(seen, bus.stream("source.flaky", {"good_from": 2, "before": 1}))
    assert (["early"], 1) == (seen, source.attempts)


async def test_a_part_larger_than_a_message_says_so(bus: reach.Bus) -> None:
    """A part over the broker's limit fails the stream, and names both sizes."""
    with pytest.raises(reach.UpstreamFailure) as large:
        await all_of(bus.stream("source.large"))
    assert Reason.BAD_RESULT is large.value.reason
    assert "1048576" in large.value.message
    assert "20000" in large.value.message


async def test_streaming_what_does_not_stream_gives_its_one_result(fleet: Fleet, bus: reach.Bus) -> None:
    """`stream` of a plain capability gives the result as its only part."""
    agent = reach.Agent("single")

    @agent.capability("single.one")
    async def one() -> dict[str, int]:
        return {"n": 1}

    await fleet.serve(agent)
    assert [{"n": 1}] == await all_of(bus.stream("single.one"))


async def test_streaming_what_nobody_serves_fails_at_once(bus: reach.Bus) -> None:
    """CALL-13: also for streams."""
    began = monotonic()
    with pytest.raises(reach.Unreachable):
        await all_of(bus.stream("nobody.here"))
    assert monotonic() - began < 2.0


async def test_wrong_parameters_of_a_stream_are_refused(bus: reach.Bus, fleet: Fleet) -> None:
    """Structure is checked before anything is sent."""
    with pytest.raises(reach.SchemaInvalid):
        await all_of(bus.stream("source.numbers", {"cuont": 1}))
    assert [0] == [len(record.attempts) for record in fleet.records]


class Impostor:
    """An agent without our runtime: it answers one capability with frames of its own making."""

    def __init__(self, fleet: Fleet, *frames: Frame) -> None:
        self.fleet = fleet
        self.frames = frames

    async def serve(self) -> None:
        connection = await self.fleet.connection(Role.AGENT)

        def receive(delivery: Delivery) -> None:
            envelope = Envelope.from_map(codec.unpack(delivery.data))
            for frame in self.frames:
                frame.stream_id = envelope.message_id
                connection.publish(delivery.reply, codec.pack(frame.to_map()))

        connection.subscribe("cap.impostor.frames", receive, queue="reach")
        await connection.flush()


def data(seq: int) -> Frame:
    return Frame("", seq, "data", seq)


@pytest.mark.parametrize(
    "frames",
    [
        [data(1), data(3), Frame("", 4, "end")],
        [data(2), Frame("", 3, "end")],
        [data(1), data(3), data(2), Frame("", 4, "end")],
        [data(1), Frame("", 3, "end")],
        [data(1), data(2), Frame("", 2, "end")],
        [Frame("", 2, "end")],
    ],
    ids=["hole", "first missing", "out of order", "last missing", "end too early", "all missing"],
)
async def test_a_gap_is_never_a_clean_end(fleet: Fleet, bus: reach.Bus, frames: list[Frame]) -> None:
    """STREAM-2, case 25: frames are numbered without gaps; a stream that lacks one has failed."""
    await Impostor(fleet, *frames).serve()
    with pytest.raises(reach.ReachError) as cut:
        await all_of(bus.stream("impostor.frames", clocks=reach.StreamClocks(idle_s=1.0)))
    assert (Code.UPSTREAM_5XX, Reason.STREAM_CUT, Executed.MAYBE) == (
        cut.value.code,
        cut.value.reason,
        cut.value.executed,
    )


async def test_a_frame_that_comes_twice_counts_once(fleet: Fleet, bus: reach.Bus) -> None:
    """STREAM-2: while a link is renewed a frame may come over both; it is one part all the same."""
    await Impostor(fleet, data(1), data(1), data(2), data(1), Frame("", 3, "end")).serve()
    assert [1, 2] == await all_of(bus.stream("impostor.frames"))


async def test_pings_are_no_parts_and_reset_no_clock(fleet: Fleet, bus: reach.Bus) -> None:
    """STREAM-1, case 23: a stream that only pings runs out of its idle clock."""
    await Impostor(fleet, data(1), *[Frame("", 1, "ping") for _ in range(20)]).serve()
    began = monotonic()
    with pytest.raises(reach.CallTimeout) as late:
        await all_of(bus.stream("impostor.frames", clocks=reach.StreamClocks(idle_s=0.3)))
    assert Reason.IDLE_STREAM is late.value.reason
    assert monotonic() - began < 1.5


async def test_what_comes_after_the_end_is_ignored(fleet: Fleet, bus: reach.Bus) -> None:
    """STREAM-2: exactly one end; later frames change nothing."""
    await Impostor(
        fleet,
        data(1),
        Frame("", 2, "end"),
        data(2),
        Frame("", 3, "error", Failure.of(Reason.HANDLER_ERROR).to_map()),
    ).serve()
    assert [1] == await all_of(bus.stream("impostor.frames"))


async def test_an_abandoned_generator_object_is_collected_as_a_cancellation(
    bus: reach.Bus, source: Source, fleet: Fleet
) -> None:
    """A stream that is never iterated makes no call; one that is dropped after a part is cancelled."""
    bus.stream("source.numbers", {"count": 5})
    parts = bus.stream("source.numbers", {"count": 100_000, "pause_s": 0.01})
    await anext(parts)
    del parts
    await eventually(lambda: source.ended == ["cancelled"], within_s=2.0)
    assert ["cancelled"] == [record.outcome for record in fleet.records]
