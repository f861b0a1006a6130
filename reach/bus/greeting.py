"""The line with which a NATS server greets, read without logging in.

A server says who it is (`INFO {...}`) before it asks who we are. That is enough to tell whether an address
is a NATS server, which one, and which version: for finding the embedded server again, and for `reach
doctor`.
"""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import dataclass

MAX_LINE_BYTES = 64 * 1024
"""A greeting is about 500 bytes, more with the addresses of a large cluster; what is longer is not one."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a server says of itself.

    Attributes:
        server_id: Chosen anew at each start of the server.
        server_name: Configured name.
        version: Such as `2.15.1`.
        port: Its client port as it knows it.
        max_payload_bytes: Largest message, headers counted.
        jetstream: Whether it keeps streams.
        tls_required: Whether clients must speak TLS.
        auth_required: Whether clients must show credentials.
    """

    server_id: str
    server_name: str
    version: str
    port: int
    max_payload_bytes: int
    jetstream: bool
    tls_required: bool
    auth_required: bool


def read_greeting(host: str, port: int, *, timeout_s: float) -> Greeting | None:
    """Connect, read one line, leave.

    Returns:
        What the server said, or None when nobody listens, nobody speaks within `timeout_s`, or what speaks is
        not a NATS server. (One that wants TLS before anything else says nothing either.)
    """
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as link, link.makefile("rb") as lines:
            line = lines.readline(MAX_LINE_BYTES)
    except OSError:
        return None
    verb, _, body = line.partition(b" ")
    if verb.upper() != b"INFO":
        return None
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        said = json.loads(body)
        return Greeting(
            server_id=str(said.get("server_id", "")),
            server_name=str(said.get("server_name", "")),
            version=str(said.get("version", "")),
            port=int(said.get("port", 0)),
            max_payload_bytes=int(said.get("max_payload", 0)),
            jetstream=bool(said.get("jetstream", False)),
            tls_required=bool(said.get("tls_required", False)),
            auth_required=bool(said.get("auth_required", False)),
        )
    return None
