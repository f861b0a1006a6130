"""A link to a server that stands still, and to one that passes on bytes that nobody should have written."""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic
from typing import Any

import pytest

import reach
from reach.bus.connection import Connection
from reach.bus.framing import Delivery
from reach.bus.internals import CLOSE_S
from reach.bus.keys import Role
from reach.bus.settings import Settings
from reach.errors import Unreachable
from tests.chaos.stress_rig import NOTHING, Rig, eventually, left_of, tell

MEGABYTE = b"x" * 1_000_000


@contextmanager
def standing_still(system: Any) -> Iterator[None]:
    """Stop the server's process for a while."""
    pid = system.server.info.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.alone
async def test_closing_does_not_wait_for_a_server_that_stands_still(own_system: Any) -> None:
    """Promise 1: with megabytes that the server does not read, closing takes two seconds and not for ever."""
    connection = await Connection.open(own_system.settings(Role.CALLER), role="caller")
    with standing_still(own_system):
        for _ in range(30):
            connection.publish("cap.nobody.here", MEGABYTE)
        began = monotonic()
        async with asyncio.timeout(10):
            await connection.close()
        took_s = monotonic() - began
    tell(f"closed in {took_s:.2f} s")
    assert took_s < CLOSE_S + 1.0


@pytest.mark.alone
async def test_a_server_that_stands_still_ends_the_link_by_its_pings(own_rig: Rig) -> None:
    """CALL-6: calls in flight are judged when the pings run out, though megabytes wait to be written."""
    settings = replace(own_rig.system.settings(Role.CALLER), ping_interval_s=0.5)
    bus = await own_rig.bus(settings=settings)
    await own_rig.agent()
    await bus.cards.instances("stress.write")
    with standing_still(own_rig.system):
        for _ in range(30):
            bus.connection.publish("cap.nobody.here", MEGABYTE)
        call = asyncio.create_task(bus.request("stress.write", {"key": "w"}, timeout_s=60))
        took_s = await eventually(call.done, within_s=10)
    tell(f"judged after {took_s:.2f} s")
    error = (await call).error
    assert error is not None
    assert ("OUTCOME_UNKNOWN", "DISCONNECTED") == (error.reason.value, error.cause)
    assert took_s < 4 * 0.5 + 1.0
    await eventually(lambda: bus.connection.connected)
    assert (await bus.request("stress.write", {"key": "again"}, timeout_s=10)).ok
    assert NOTHING == left_of(bus)


def with_headers(block: bytes) -> bytes:
    """A request whose header block is this."""
    return b"HPUB cap.stress.write r.1 %d %d\r\n%b{}\r\n" % (len(block), len(block) + 2, block)


POISON = {
    "a reply subject that is no text": b"PUB cap.stress.write re\xffply 2\r\n{}\r\n",
    "headers that are too short": with_headers(b"NATS/1.0"),
    "a status that is no text": with_headers(b"NATS/1.0 \xff\xff\xff bad\r\n\r\n"),
    "a status without its line": with_headers(b"NATS/1.0 \r"),
    "headers of no known version": with_headers(b"HTTP/1.1 200\r\n"),
    "a header name that is no text": with_headers(b"NATS/1.0\r\n\xff: \xff\r\n\r\n"),
    "a description that is no text": with_headers(b"NATS/1.0 503 \xff\xfe\xfd\r\n\r\n\r\n"),
}


async def test_bytes_that_are_no_text_do_not_deafen_an_agent(rig: Rig) -> None:
    """Promise 3: what any client may publish costs the agent neither its link nor its other callers their calls."""
    peer = await rig.agent(AGENT="poisoned")
    bus = await rig.bus()
    stranger = await rig.connection(Role.CALLER)
    assert stranger.link is not None
    for what, line in POISON.items():
        stranger.link._enqueue(line)
        await stranger.flush()
        call = await bus.request("stress.write", {"key": "after"}, target="poisoned", timeout_s=5)
        assert call.error is None, what
        status = await peer.status()
        assert (1, 0, 0) == (status["epoch"], status["faults"], status["inflight"]), what


async def test_answers_on_subjects_that_are_no_text_do_not_deafen_a_caller(rig: Rig) -> None:
    """Promise 3: an agent that answers where nobody asked costs the caller nothing."""
    bus = await rig.bus()
    agent = await rig.connection(Role.AGENT)
    assert agent.link is not None
    heard: list[Delivery] = []
    bus.connection.subscribe(f"{bus.connection.inbox}.here", heard.append)
    await bus.connection.flush()
    for token in (b"\xff", b"a\xc3", b"\xf0\x9f", b"1\xfe"):
        agent.link._enqueue(b"PUB %b.%b 2\r\n{}\r\n" % (bus.connection.inbox.encode(), token))
    agent.publish(f"{bus.connection.inbox}.here", b"{}")
    await eventually(lambda: heard, within_s=3.0)
    assert (1, 0) == (bus.connection.epoch, bus.connection.faults)


async def test_a_link_that_went_deaf_is_replaced_at_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """CALL-6: whatever ends the read loop ends the link, not a minute later by its pings."""
    bus = await rig.bus()
    link = bus.connection.link
    assert link is not None

    async def unreadable(*_: object) -> None:
        raise ValueError("something that nobody has thought of")

    monkeypatch.setattr(link, "_process_msg", unreadable)
    # With a header: plain messages are framed by our own code, and never come to where this one does. From an
    # agent: no caller may publish to an inbox.
    agent = await rig.connection(Role.AGENT)
    agent.publish(f"{bus.connection.inbox}.here", b"{}", headers={"Kind": "odd"})
    await eventually(lambda: bus.connection.epoch == 2, within_s=3.0)
    assert isinstance(bus, reach.Bus)
    await bus.connection.flush()


async def test_a_connection_that_meets_itself_is_none(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody listens TCP may connect a socket to itself: that is refused, and the port left to the server."""
    really = asyncio.open_connection

    async def to_itself(host: str, port: int, *, limit: int) -> Any:
        ours = socket.socket()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ours.bind((host, port))
        ours.connect((host, port))
        ours.setblocking(False)
        return await really(sock=ours, limit=limit)

    monkeypatch.setattr(asyncio, "open_connection", to_itself)
    settings = Settings(
        servers=(f"nats://127.0.0.1:{unused_tcp_port}",),
        role=Role.CALLER,
        source="test",
        connect_timeout_s=0.3,
    )
    with pytest.raises(Unreachable, match="listens there"):
        await Connection.open(settings, role="caller")
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", unused_tcp_port))
        server.listen()
