"""Header blocks, encoded by ourselves: nats-py counts only the payload against the broker's limit."""

from __future__ import annotations

from typing import Final

from reach.errors import SchemaInvalid
from reach.faults import Reason
from reach.wire import names

HEADER_LINE: Final = b"NATS/1.0\r\n"


def encode_headers(headers: dict[str, str]) -> bytes:
    """Encode a header block. Raises `NameRefused` for a name or value that could inject a line."""
    lines = [HEADER_LINE]
    for name, value in headers.items():
        names.token(name, "header name")
        lines.append(f"{name}: {names.header_value(value)}\r\n".encode())
    lines.append(b"\r\n")
    return b"".join(lines)


def too_large(size: int, limit: int) -> SchemaInvalid:
    """Build the refusal of a message of `size` bytes where the broker takes `limit`."""
    return SchemaInvalid(
        f"the message has {size} bytes with its headers; the broker takes {limit}", reason=Reason.TOO_LARGE
    )
