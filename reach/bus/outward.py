"""HTTP to addresses that somebody else named, behind the guard: looked up, judged and pinned at every connection.

The check sits where the socket is opened, so nothing that speaks HTTP through it (a pool, a redirect, a retry) can
pass it by. TLS still asks for the certificate of the name that was meant. Needs `httpcore` (`agent-reach[webhooks]`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import httpcore
from httpcore import AnyIOBackend, AsyncNetworkBackend, AsyncNetworkStream

from reach.bus.guard import Guard, Unresolved


class GuardedBackend(AsyncNetworkBackend):
    """Opens sockets for httpcore, to judged addresses alone."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._below = AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's own interface
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> AsyncNetworkStream:
        """Connect to the first judged address that answers. Raises `Inward`, `httpcore.ConnectError`."""
        try:
            addresses = await self._guard.resolve(host, port)
        except Unresolved as error:
            raise httpcore.ConnectError(str(error)) from None
        for address in addresses[:-1]:
            try:
                return await self._below.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._below.connect_tcp(addresses[-1], port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await self._below.sleep(seconds)


def pool(guard: Guard, *, connections: int = 64) -> httpcore.AsyncConnectionPool:
    """Give a pool whose connections are guarded; redirects are never followed by it."""
    return httpcore.AsyncConnectionPool(
        max_connections=connections,
        max_keepalive_connections=0,  # An address that was judged long ago is judged again.
        network_backend=GuardedBackend(guard),
    )
