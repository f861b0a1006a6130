"""The only file that touches nats-py's private parts (exact version pin, contract test).

`NatsLink` is nats-py's client with three changes that the public interface does not offer: messages of our
own subscriptions are handed over synchronously inside the read loop (no queue, no task a subscription),
publishing is synchronous with one socket write a loop turn, and a round trip that can neither overtake an
UNSUB (nats-py's `flush` writes PING past its own pending list) nor break the read loop when it is given up
(nats-py resolves a cancelled future there). One link is one connection: it never reconnects by itself.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, cast

from nats.aio.client import Client
from nats.errors import ProtocolError
from nats.protocol import command
from nats.protocol.parser import AWAITING_MSG_PAYLOAD, Parser

from reach.bus.framing import Delivery, deliver
from reach.errors import LinkDown, NameRefused

if TYPE_CHECKING:
    from collections.abc import Callable

SUPPORTED_NATS_PY = "2.16.0"
"""The version whose private parts were read; pinned in pyproject.toml."""

_CONNECTED: Final = Client.CONNECTED

CLOSE_S: Final = 2.0
"""How long closing waits for what was sent to be taken by the server."""


_LARGE: Final = 32 * 1024
"""Bytes of an unfinished message above which nats-py's buffer gathers the rest: ours would copy it each time."""


class _QuickParser(Parser):
    """nats-py's parser behind ours, which sees plain messages of our own subscriptions first.

    `feed` takes bytes where they come off the socket, without a turn of the loop. What is not ours goes on to
    nats-py's reader, and everything after it too until the read loop has been there: order is kept.
    """

    def __init__(
        self,
        link: NatsLink,
        handlers: dict[bytes, Callable[[Delivery], None]],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        super().__init__(link)
        self._handlers = handlers
        self._on_fault = on_fault
        self._unfinished = b""
        self.heard = monotonic()
        self._waiting = 0  # Bytes that nats-py's reader has, and the read loop has not worked off.

    def reset(self) -> None:
        super().reset()
        self._unfinished = b""

    def front(self, reader: Any) -> None:
        """Stand before a stream reader from now on."""
        gather = reader.feed_data
        self._waiting = len(getattr(reader, "_buffer", b""))

        def feed(data: bytes) -> None:
            self.heard = monotonic()
            rest = data if self._waiting or self._is_midway else self._take(data)
            if rest:
                self._waiting += len(rest)
                gather(rest)

        reader.feed_data = feed

    async def parse(self, data: bytes = b"") -> None:
        self.heard = monotonic()
        try:
            rest = data if self._is_midway else self._take(data)
            if rest:
                await super().parse(rest)
        finally:
            self._waiting = max(0, self._waiting - len(data))

    @property
    def _is_midway(self) -> bool:
        """Whether nats-py has begun what it has no end of. Bytes of a body must never be read as a message."""
        return bool(self.buf) or self.state == AWAITING_MSG_PAYLOAD

    def _take(self, data: bytes) -> bytes:
        """Deliver what is ours at the front; give what is not."""
        piece = self._unfinished + data if self._unfinished else data
        at, unfinished = deliver(piece, self._handlers, self.heard, self._on_fault)
        rest = piece[at:]
        if unfinished and len(rest) < _LARGE:
            self._unfinished = rest
            return b""
        self._unfinished = b""
        return rest


class NatsLink(Client):
    """One connection to one NATS server.

    `on_fault` is told of exceptions that a handler let out, `on_end` of the link's end, in the moment in which
    nothing can be sent any more.
    """

    def __init__(
        self, *, on_fault: Callable[[BaseException], None], on_end: Callable[[NatsLink], None]
    ) -> None:
        super().__init__()
        self._on_end = on_end
        self._direct: dict[bytes, Callable[[Delivery], None]] = {}
        self._on_fault = on_fault
        self._ps = self._quick = _QuickParser(self, self._direct, on_fault)
        self._write_scheduled = False
        self._running_loop = asyncio.get_running_loop()

    async def _process_connect_init(self) -> None:
        writer: Any = getattr(self._transport, "_io_writer", None)
        if writer is not None and writer.get_extra_info("sockname") == writer.get_extra_info("peername"):
            # TCP lets a socket meet itself where nobody listens; it would wait, and hold the server's port.
            raise ConnectionRefusedError("nobody listens there: the connection met itself")
        await super()._process_connect_init()
        reader = getattr(self._transport, "_io_reader", None)
        if reader is not None:
            self._quick.front(reader)

    # -- receiving -----------------------------------------------------------------------------------

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        handler = self._direct.get(b"%d" % sid)
        if handler is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        parsed = await self._headers_of(headers) if headers else None
        try:
            handler(Delivery(subject, reply, data, parsed, monotonic()))
        except Exception as error:  # noqa: BLE001 - it would end the read loop for everybody
            self._on_fault(error)

    async def _headers_of(self, block: bytes) -> dict[str, str] | None:
        try:
            return await self._process_headers(block)
        except (ValueError, IndexError):
            return None  # Whoever wrote them is heard without them.

    async def _read_loop(self) -> None:
        await super()._read_loop()
        if self.is_connected:
            # nats-py logs what it cannot read, and goes deaf: until its pings run out, a minute later.
            await self._process_op_err(ProtocolError())

    # -- subscriptions -------------------------------------------------------------------------------

    def listen(self, subject: str, queue: str, handler: Callable[[Delivery], None]) -> int:
        """Subscribe; messages go to `handler` inside the read loop. Returns the subscription's id on this link."""
        self._sid += 1
        self._direct[b"%d" % self._sid] = handler
        self._enqueue(command.sub_cmd(subject, queue, self._sid))
        return self._sid

    def unlisten(self, sid: int) -> None:
        """Tell the server to send no more; what is under way is still handed over until `forget`."""
        if b"%d" % sid in self._direct:
            self._enqueue(command.unsub_cmd(sid, 0))

    def forget(self, sid: int) -> None:
        """Drop a subscription's handler."""
        self._direct.pop(b"%d" % sid, None)

    # -- sending -------------------------------------------------------------------------------------

    def send(self, subject: str, reply: str, data: bytes) -> None:
        """Publish without waiting. Raises `LinkDown` when the link is not up, `NameRefused` for what is no subject."""
        if " " in subject or not subject.isprintable():
            raise _no_subject(subject)
        self.put(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply.encode(), len(data), data))

    def put(self, line: bytes) -> None:
        """Publish what is framed already. Raises `LinkDown` when the link is not up."""
        if self._status != _CONNECTED:
            raise LinkDown
        self._pending.append(line)
        self._pending_data_size += len(line)
        if not self._write_scheduled:
            self._write_scheduled = True
            self._running_loop.call_soon(self.write_out)

    def send_with_headers(self, subject: str, reply: str, data: bytes, headers: bytes) -> None:
        """Publish with an already encoded header block. Raises what `send` raises."""
        if self._status != Client.CONNECTED:
            raise LinkDown
        if " " in subject or not subject.isprintable():
            raise _no_subject(subject)
        size = len(headers)
        head = b"HPUB %b %b %d %d\r\n" % (subject.encode(), reply.encode(), size, size + len(data))
        self._enqueue(head + headers + data + b"\r\n")

    def _enqueue(self, line: bytes) -> None:
        self._pending.append(line)
        self._pending_data_size += len(line)
        if not self._write_scheduled:
            self._write_scheduled = True
            self._running_loop.call_soon(self.write_out)

    def write_out(self) -> None:
        """Hand everything pending to the socket now."""
        self._write_scheduled = False
        if self._pending and self._transport is not None and self._status == Client.CONNECTED:
            lines, self._pending, self._pending_data_size = self._pending, [], 0
            # One joined write: handing over a list costs the transport a step for each message. On a socket
            # that has just ended uvloop raises; the end of the link, about to be told, judges what was lost.
            with suppress(OSError, RuntimeError):
                self._transport.write(b"".join(lines))

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait here or in the socket's buffer."""
        writer: Any = getattr(self._transport, "_io_writer", None)
        waiting = writer.transport.get_write_buffer_size() if writer is not None else 0
        return self._pending_data_size + cast("int", waiting)

    async def drain_socket(self) -> None:
        """Wait until the socket's buffer is below its high-water mark."""
        self.write_out()
        if self._transport is not None:
            await self._transport.drain()  # type: ignore[no-untyped-call]

    @property
    def heard(self) -> float:
        """When (loop seconds) anything came from the server the last time."""
        return self._quick.heard

    def ping(self) -> None:
        """Ask the server for a PONG behind everything that was published; nobody waits for it. Raises `LinkDown`."""
        self.put(b"PING\r\n")
        self._pongs.append(self._running_loop.create_future())

    async def round_trip(self, timeout_s: float) -> None:
        """PING and wait for the PONG, behind everything sent so far. Raises `TimeoutError`, `LinkDown`."""
        if self._status != Client.CONNECTED or self._transport is None:
            raise LinkDown
        self.write_out()
        pong: asyncio.Future[bool] = self._running_loop.create_future()
        try:
            self._transport.write(b"PING\r\n")
        except (OSError, RuntimeError):
            raise LinkDown from None  # See `write_out`.
        self._pongs.append(pong)
        # asyncio.wait leaves the future alone when time is up: nats-py must find it resolvable later.
        done, _ = await asyncio.wait({pong}, timeout=timeout_s)
        if not done:
            raise TimeoutError
        if self._status != Client.CONNECTED:
            raise LinkDown

    # -- facts ---------------------------------------------------------------------------------------

    @property
    def facts(self) -> dict[str, Any]:
        """The server's INFO: server_id, version, max_payload, jetstream, connect_urls."""
        return dict(self._server_info)

    @property
    def is_up(self) -> bool:
        """Whether publishing would work: one comparison, since it is asked for each call."""
        return bool(self._status == Client.CONNECTED)

    @property
    def address(self) -> str:
        """The server's address, as it was dialled."""
        server = self._current_server
        return "" if server is None else server.uri.geturl()

    @property
    def has_others(self) -> bool:
        """Whether nats-py itself is subscribed to something on this link (transfers of its object store)."""
        return any(sub._subject != self._resp_subject for sub in self._subs.values())

    @property
    def _resp_subject(self) -> str:
        """nats-py's own reply subscription, which stays for as long as the link does."""
        prefix = self._resp_sub_prefix
        return "" if prefix is None else prefix.decode() + "*"

    @property
    def encrypted(self) -> bool:
        """Whether the socket speaks TLS. nats-py goes on in plain text when the server does not ask for TLS."""
        writer: Any = getattr(self._transport, "_io_writer", None)
        return writer is not None and writer.get_extra_info("ssl_object") is not None

    @property
    def discovered(self) -> list[str]:
        """Addresses of cluster members that the server told us of, with our scheme."""
        return [server.uri.geturl() for server in self._server_pool if server.discovered]

    # -- end -----------------------------------------------------------------------------------------

    async def _process_op_err(self, e: Exception) -> None:
        self.abort()  # What cannot be written any more must not be waited for.
        await super()._process_op_err(e)

    async def _close(self, status: int, do_cbs: bool = True) -> None:  # noqa: FBT001, FBT002 - nats-py's own
        """Close within `CLOSE_S`: a server that stands still reads nothing, and nats-py would wait for it."""
        self.write_out()
        # Left here it would be written to a socket that may have ended; that raises, and nobody would be told.
        self._pending, self._pending_data_size = [], 0
        if not self.is_closed:
            self._status = Client.DISCONNECTED
            self._on_end(self)
        patience = self._running_loop.call_later(CLOSE_S, self.abort)
        try:
            await super()._close(status, do_cbs)
        finally:
            patience.cancel()

    def abort(self) -> None:
        """Close the socket at once, with what waits to be written."""
        writer: Any = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def abandon(self) -> None:
        """Close the socket of a link that never came up; nats-py leaves it open when the login is refused."""
        self.release_pongs()
        if self._transport is None:
            return
        self.abort()
        self._transport.close()  # type: ignore[no-untyped-call]
        with suppress(OSError, asyncio.CancelledError):
            await asyncio.shield(self._transport.wait_closed())  # type: ignore[no-untyped-call]

    def release_pongs(self) -> None:
        """Let go of whoever waits for a PONG on a link that has ended."""
        pongs, self._pongs = self._pongs, []
        for pong in pongs:
            if not pong.done():
                pong.set_result(False)


def _no_subject(subject: str) -> NameRefused:
    """Say why a subject is not published to: it would be read as a line of the protocol, or end the link."""
    return NameRefused(f"{subject[:80]!r} is no subject: it holds a space or a control character")
