"""One callback over the wire: a signed POST to a guarded address, and what came of it.

Nothing of the answer is kept but its status; at most a little of its body is read, so that a receiver cannot hold
us by talking on. Whatever happens, it is over after `TIMEOUT_S`.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import Final

import anyio
import httpcore

from actors.tasks.hooks import TIMEOUT_S, Try, explain
from reach.bus import outward
from reach.bus.guard import Guard, Inward

CONTENT_TYPE: Final = b"application/cloudevents+json; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one try; `refused` when the address is one that nothing may be sent to."""

    told: Try
    refused: bool = False


class Post:
    """Sends callbacks. Close it."""

    def __init__(self, guard: Guard, *, timeout_s: float = TIMEOUT_S) -> None:
        self._guard = guard
        self._pool = outward.pool(guard)
        self._timeout_s = timeout_s

    async def send(self, url: str, body: bytes, headers: dict[str, str], *, now_ms: int) -> Outcome:
        """Send one; never raises for what the far end, or the way there, does."""
        began = monotonic()
        status: int | None = None
        error: str | None = None
        refused = False
        try:
            self._guard.check_url(url)
            with anyio.fail_after(self._timeout_s):
                status = await self._status(url, body, headers)
        except Inward as inward:
            error, refused = str(inward), True
        except TimeoutError:
            error = f"no answer within {self._timeout_s:g} s"
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as failed:
            error = f"{type(failed).__name__}: {failed}"[:200]
        except (httpcore.UnsupportedProtocol, ValueError, UnicodeError) as failed:
            error, refused = f"the address cannot be used: {type(failed).__name__}", True
        if status is not None:
            error = explain(status)
        took_ms = int((monotonic() - began) * 1000)
        return Outcome(Try(at=now_ms, status=status, error=error, took_ms=took_ms), refused=refused)

    async def close(self) -> None:
        """Let go of connections."""
        await self._pool.aclose()

    async def _status(self, url: str, body: bytes, headers: dict[str, str]) -> int:
        fields = [
            (b"content-type", CONTENT_TYPE),
            (b"content-length", str(len(body)).encode()),
            (b"user-agent", b"agent-reach"),
            (b"connection", b"close"),
            *((name.encode(), value.encode()) for name, value in headers.items()),
        ]
        async with self._pool.stream("POST", url.encode("ascii"), headers=fields, content=body) as response:
            return int(response.status)
