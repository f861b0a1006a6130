"""Messages out of a piece of the socket's stream, without a regular expression each.

Nearly all that a client receives are plain messages (`MSG <subject> <sid> [reply] <bytes>`) of its own
subscriptions. `deliver` hands on those at the front of a piece, and stops at the first thing that is something
else: a message with headers, a PING, an error, half a message. That is nats-py's to read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from reach.wire.subjects import answerable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_LINE_END: Final = b"\r\n"
_INBOXES: Final = (b"reply.", b"_INBOX.")
_WITH_REPLY: Final = 4
_WITHOUT_REPLY: Final = 3


class Delivery(Struct, gc=False, eq=False):
    """One message as it came off the socket. `received` is when it was parsed, in monotonic seconds."""

    raw_subject: bytes
    raw_reply: bytes
    data: bytes
    headers: dict[str, str] | None
    received: float

    @property
    def subject(self) -> str:
        """Its subject. Anybody may publish bytes that are no text: they are replaced."""
        return self.raw_subject.decode("utf-8", "replace")

    @property
    def reply(self) -> str:
        """Where to answer; empty for a subject that means something, since such an answer would be an order."""
        raw = self.raw_reply
        if raw.startswith(_INBOXES):
            return raw.decode("utf-8", "replace")
        return answerable(raw.decode("utf-8", "replace"))

    @property
    def no_responders(self) -> bool:
        """Whether this is the broker saying that nobody listens on the subject."""
        return self.headers is not None and not self.data and self.headers.get("Status") == "503"


def deliver(
    piece: bytes,
    handlers: Mapping[bytes, Callable[[Delivery], Any]],
    received: float,
    on_fault: Callable[[BaseException], None],
) -> tuple[int, bool]:
    """Hand the whole messages at the front of `piece` to the handlers of their subscription ids.

    Returns where the rest begins, and whether that is a message of ours of which only the end is missing.
    What a handler raises goes to `on_fault`: it must not end the read loop for everybody.
    """
    at = 0
    length = len(piece)
    find = piece.find
    while piece.startswith(b"MSG ", at):
        line_end = find(_LINE_END, at)
        if line_end < 0:
            return at, True
        parts = piece[at + 4 : line_end].split(b" ")
        reply = b""
        if len(parts) == _WITH_REPLY:
            subject, sid, reply, digits = parts
        elif len(parts) == _WITHOUT_REPLY:
            subject, sid, digits = parts
        else:
            break
        handler = handlers.get(sid)
        if handler is None or not digits.isdigit():
            break
        start = line_end + 2
        end = start + int(digits)
        if end + 2 > length:
            return at, True
        try:
            handler(Delivery(subject, reply, piece[start:end], None, received))
        except Exception as error:  # noqa: BLE001 - told; see above
            on_fault(error)
        at = end + 2
    return at, False
