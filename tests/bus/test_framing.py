"""Messages out of pieces of the stream: our quick framing against nats-py's own parser, which is the oracle.

`deliver` may hand on less than nats-py would, never something else: what it does not take stays, byte for byte, for
nats-py. So the two together, whatever the pieces, do what nats-py does alone.
"""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.protocol.parser import Parser

from reach.bus.framing import Delivery, deliver
from reach.bus.internals import _QuickParser

OURS = (b"1", b"7", b"42")
FOREIGN = b"8"
TWO = b"MSG cap.a 1 reply.x 5\r\nhello\r\nMSG cap.b 7 2\r\n\r\n\r\n"
"""One message with a reply subject, and one without, whose body is a line's end."""
NOT_OURS = {
    "headers": b"HMSG cap.a 1 reply.x 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
    "ping": b"PING\r\n",
    "pong": b"PONG\r\n",
    "ok": b"+OK\r\n",
    "info": b'INFO {"ldm": true}\r\n',
    "error": b"-ERR 'Permissions Violation for Publish to \"x\"'\r\n",
    "foreign": b"MSG cap.z 8 3\r\nabc\r\n",
    "in tabs": b"MSG\tcap.a\t1\t3\r\nabc\r\n",
    "in many blanks": b"MSG cap.a  1   reply.x  3\r\nabc\r\n",
}

Seen = list[tuple[Any, ...]]


class Oracle:
    """What nats-py's parser calls; keeps what it said, in order."""

    def __init__(self, handlers: dict[bytes, Callable[[Delivery], None]] | None = None) -> None:
        self.seen: Seen = []
        self.handlers = handlers if handlers is not None else dict.fromkeys(OURS, self.take)

    def take(self, got: Delivery) -> None:
        self.seen.append(("message", got.raw_subject, got.raw_reply, got.data, got.headers))

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> None:
        await asyncio.sleep(0)  # As nats-py may, so that bytes come in meanwhile.
        handler = self.handlers.get(b"%d" % sid)
        if handler is None:
            self.seen.append(("foreign", sid, subject, reply, data, headers))
        else:
            handler(Delivery(subject, reply, data, headers, 0.0))

    async def _process_err(self, text: str) -> None:
        self.seen.append(("error", text))

    async def _process_ping(self) -> None:
        await asyncio.sleep(0)
        self.seen.append(("ping",))

    async def _process_pong(self) -> None:
        self.seen.append(("pong",))

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.seen.append(("info", info))


def unraised(error: BaseException) -> None:
    """Stand where no handler raises."""
    raise error


def split(piece: bytes) -> tuple[Seen, bytes, bool]:
    """What is delivered of a piece, what is left of it, and whether only the end of that is missing."""
    oracle = Oracle()
    at, unfinished = deliver(piece, oracle.handlers, 5.0, unraised)
    return oracle.seen, piece[at:], unfinished


async def by_nats(stream: bytes) -> Seen:
    """What nats-py makes of a stream."""
    oracle = Oracle()
    await Parser(oracle).parse(stream)
    return oracle.seen


class Reader:
    """As much of asyncio's stream reader as the parser stands before."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed_data(self, data: bytes) -> None:
        self._buffer.extend(data)

    def read(self) -> bytes:
        data, self._buffer = bytes(self._buffer), bytearray()
        return data


async def by_both(pieces: list[bytes], *, at_once: int = 1) -> Seen:
    """What our framing before nats-py's makes of pieces of which so many come in a turn of the loop.

    As in a link, pieces come in while the read loop still works on the ones before.
    """
    oracle = Oracle()
    link: Any = oracle
    parser = _QuickParser(link, oracle.handlers, unraised)
    reader = Reader()
    parser.front(reader)
    open_ended = True

    async def read() -> None:
        while (data := reader.read()) or open_ended:
            if data:
                await parser.parse(data)
            else:
                await asyncio.sleep(0)

    reading = asyncio.ensure_future(read())
    for number, piece in enumerate(pieces, start=1):
        reader.feed_data(piece)
        if number % at_once == 0:
            await asyncio.sleep(0)
    open_ended = False
    await reading
    return oracle.seen


# ----------------------------------------------------------------------------------------------- one piece


def test_whole_messages_are_handed_on_with_and_without_a_reply() -> None:
    """Subject, reply, body and the time of parsing are the message's; nothing is left over."""
    got: list[Delivery] = []
    assert (len(TWO), False) == deliver(TWO, dict.fromkeys(OURS, got.append), 5.0, unraised)
    assert [
        (b"cap.a", b"reply.x", b"hello", None, 5.0),
        (b"cap.b", b"", b"\r\n", None, 5.0),
    ] == [(one.raw_subject, one.raw_reply, one.data, one.headers, one.received) for one in got]


@pytest.mark.parametrize("size", range(len(TWO)))
def test_a_piece_that_ends_anywhere_delivers_what_is_whole(size: int) -> None:
    """What ends in the middle of a message of ours leaves that message, from its first byte on."""
    first = TWO.index(b"MSG cap.b")
    seen, rest, unfinished = split(TWO[:size])
    whole = size >= first
    assert int(whole) == len(seen)
    assert TWO[first if whole else 0 : size] == rest
    assert rest.startswith(b"MSG ") == unfinished


@pytest.mark.parametrize("size", range(len(TWO) + 1))
async def test_a_message_cut_at_any_byte_arrives_once(size: int) -> None:
    """The two pieces of a stream are the stream, wherever it was cut."""
    assert await by_nats(TWO) == await by_both([TWO[:size], TWO[size:]])


async def test_a_stream_that_arrives_byte_by_byte_is_the_same_stream() -> None:
    """Messages of ours, others and lines of the protocol, one byte at a time: each once, in order."""
    stream = TWO + b"".join(NOT_OURS.values()) + TWO
    pieces = [stream[at : at + 1] for at in range(len(stream))]
    expected = await by_nats(stream)
    assert 4 + len(NOT_OURS) - 1 == len(expected)  # +OK says nothing.
    assert expected == await by_both(pieces)
    assert expected == await by_both(pieces, at_once=7)


async def test_a_body_is_never_read_as_messages_however_it_is_cut() -> None:
    """A stranger's body arrives apart from its line, and looks like a message of ours: it stays a body."""
    forged = b"MSG cap.a 1 reply.x 6\r\nforged\r\n"
    for line in (b"HMSG cap.a 1 r.y 12 %d\r\n" % (12 + len(forged)), b"MSG cap.z 8 %d\r\n" % len(forged)):
        body = forged if line.startswith(b"MSG") else b"NATS/1.0\r\n\r\n" + forged
        expected = await by_nats(line + body + b"\r\n" + TWO)
        assert expected == await by_both([line, body + b"\r\n" + TWO])
        assert expected == await by_both([line + body[: -len(forged)], forged + b"\r\n" + TWO])


@pytest.mark.parametrize("kind", NOT_OURS)
def test_what_is_not_ours_stops_it(kind: str) -> None:
    """Headers, lines of the protocol and strangers' messages stay where they are, and so does all behind them."""
    other = NOT_OURS[kind]
    first = TWO.index(b"MSG cap.b")
    seen, rest, unfinished = split(TWO[:first] + other + TWO[first:])
    assert 1 == len(seen)
    assert (other + TWO[first:], False) == (rest, unfinished)


@pytest.mark.parametrize(
    "digits", [b"", b"x", b"-1", b"+1", b"1.0", b"0x1", b"1_0", b"\xb2", "²".encode(), b"1\n"]
)
def test_a_size_that_is_no_number_is_left_to_nats(digits: bytes) -> None:
    """What is not made of digits alone is not taken for a size, though Python would read some of it as a number."""
    line = b"MSG cap.a 1 %b\r\nx\r\n" % digits
    assert ([], line, False) == split(line)


@pytest.mark.parametrize("digits", [b"0", b"00", b"007", b"3"])
async def test_sizes_that_nats_reads_are_read_alike(digits: bytes) -> None:
    """Zero, and zeros in front, are numbers."""
    line = b"MSG cap.a 1 %b\r\n" % digits + b"x" * int(digits) + b"\r\n"
    seen, rest, unfinished = split(line)
    assert (await by_nats(line), b"", False) == (seen, rest, unfinished)


def test_a_body_may_look_like_messages() -> None:
    """Bodies are counted, never searched: a message inside one is bytes."""
    line = b"MSG cap.a 1 %d\r\n%b\r\n" % (len(TWO), TWO)
    seen, rest, _ = split(line + TWO)
    assert [TWO, b"hello", b"\r\n"] == [message[3] for message in seen]
    assert b"" == rest


@pytest.mark.parametrize(
    "line", [b"MSG cap.a 1\r\n", b"MSG cap.a 1 r x 3\r\nabc\r\n", b"MSG \r\n", b"MSG    \r\n"]
)
def test_a_line_of_too_few_or_too_many_words_is_left_to_nats(line: bytes) -> None:
    """Only lines of three or four words are messages; nats-py says what is wrong with others."""
    assert ([], line, False) == split(line)


def test_a_handler_that_raises_is_told_and_harms_no_other_message() -> None:
    """Every other message is delivered, in order, and the place in the stream is kept."""
    got: list[bytes] = []
    faults: list[BaseException] = []

    def handle(message: Delivery) -> None:
        if message.data == b"hello":
            raise RuntimeError("cannot")
        got.append(message.data)

    assert (2 * len(TWO), False) == deliver(TWO + TWO, dict.fromkeys(OURS, handle), 0.0, faults.append)
    assert [b"\r\n", b"\r\n"] == got
    assert ["cannot", "cannot"] == [str(error) for error in faults]


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_what_ends_a_program_is_not_held_back(end: type[BaseException]) -> None:
    """A handler's fault is told; Ctrl-C is no fault."""

    def handle(_: Delivery) -> None:
        raise end

    with pytest.raises(end):
        deliver(TWO, dict.fromkeys(OURS, handle), 0.0, unraised)


def test_a_handler_that_takes_away_the_next_ones_subscription_is_heeded() -> None:
    """Handlers are looked up message by message: what was forgotten meanwhile is not ours any more."""
    unheard: list[Delivery] = []
    handlers: dict[bytes, Callable[[Delivery], None]] = {}
    handlers |= {b"1": lambda _: handlers.clear(), b"7": unheard.append}
    at, unfinished = deliver(TWO, handlers, 0.0, unraised)
    assert ([], TWO.index(b"MSG cap.b"), False) == (unheard, at, unfinished)


# -------------------------------------------------------------------------------------------- any stream

TOKENS = st.text(st.sampled_from("abc.*>_-é€"), min_size=1, max_size=8).map(str.encode)
BODIES = st.binary(max_size=24) | st.sampled_from([b"\r\n", b"MSG a 1 1\r\n", b"PING\r\n", TWO])


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """A message of any subscription, with or without reply and headers."""
    words = [draw(TOKENS), draw(st.sampled_from([*OURS, *OURS, FOREIGN]))]
    if draw(st.booleans()):
        words.append(draw(TOKENS))
    body = draw(BODIES)
    if draw(st.integers(0, 5)) == 0:
        block = b"NATS/1.0\r\n\r\n"
        return b"HMSG %b %d %d\r\n%b%b\r\n" % (
            b" ".join(words),
            len(block),
            len(block) + len(body),
            block,
            body,
        )
    return b"MSG %b %d\r\n%b\r\n" % (b" ".join(words), len(body), body)


# No server writes white space into a subject. nats-py would take it for the end of the word, ours for a part of it.
VISIBLE = st.binary(max_size=2).filter(lambda put: not put.strip(bytes(range(0x21, 0x7F))))
LINES = messages() | messages() | messages() | st.sampled_from(sorted(NOT_OURS.values()))


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    at = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    return [stream[begin:end] for begin, end in pairwise(at)]


@given(
    lines=st.lists(LINES, max_size=6),
    places=st.lists(st.integers(0, 500), max_size=12),
    at_once=st.integers(1, 4),
)
@settings(max_examples=500, deadline=None)
def test_any_stream_in_any_pieces_is_what_nats_py_reads(
    lines: list[bytes], places: list[int], at_once: int
) -> None:
    """Ours before nats-py's sees the same messages, errors and pings in the same order as nats-py alone."""
    stream = b"".join(lines)

    async def both() -> tuple[Seen, Seen]:
        return await by_nats(stream), await by_both(cut(stream, places), at_once=at_once)

    expected, found = asyncio.run(both())
    assert expected == found


@given(
    lines=st.lists(LINES, min_size=1, max_size=4),
    changes=st.lists(st.tuples(st.integers(0, 500), VISIBLE), min_size=1, max_size=3),
)
@settings(max_examples=500, deadline=None)
def test_what_is_taken_of_a_damaged_stream_is_what_nats_py_would_take(
    lines: list[bytes], changes: list[tuple[int, bytes]]
) -> None:
    """Of a stream that is damaged anywhere, ours delivers a beginning of what nats-py delivers, or nothing."""
    damaged = bytearray(b"".join(lines))
    for place, put in changes:
        at = place % (len(damaged) + 1)
        damaged[at : at + len(put)] = put
    stream = bytes(damaged)
    seen, rest, _ = split(stream)
    taken = stream[: len(stream) - len(rest)]
    assert seen == asyncio.run(by_nats(taken))
