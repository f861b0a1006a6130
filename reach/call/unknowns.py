"""What this client tells of its calls whose outcome is unknown: one entry each, on the platform's list (RETRY-2).

The caller's reply never waits for it. Entries wait in line until the stream has acknowledged them, across outages and
with the same message id, so that one which was stored twice is one. What is left when the client ends, or does not fit
the line, is told in the log: the call's own record has it, too.

==================  ======  ================================================================
what                number  where it comes from
==================  ======  ================================================================
waiting             4096    ours: the calls of one capability that an outage can cut off
parameters waiting  8 MiB   ours: of what waits longer only digests are kept
at the end          2 s     ours: a server that restarts is back by then
no list             0.5 s   ours: a server that has just started answers before its streams do
==================  ======  ================================================================
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from reach.bus.jetstream import JetStream, Unacknowledged
from reach.errors import ConfigError, LinkDown, NotOnTheWire, ReachError, SchemaInvalid, Unreachable
from reach.faults import Executed, Reason
from reach.policy.dedupe import key_of
from reach.policy.fingerprint import digest
from reach.wire import codec, subjects
from reach.wire.task import DEFAULT_TENANT
from reach.wire.unknown import MAX_PARAMETERS_BYTES, Tried, UnknownOutcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reach.bus.connection import Connection
    from reach.call.call import Call
    from reach.wire.reply import Failure

_log = logging.getLogger("reach.call")

MOST_WAITING: Final = 4096
MOST_PARAMETERS_BYTES: Final = 8 * 1024 * 1024
CLOSE_S: Final = 2.0
ABSENCE_S: Final = 0.5

SETTING: Final = "REACH_UNKNOWN_PARAMETERS"

_AGAIN_S: Final = (0.05, 0.2, 0.5, 1.0, 2.0)
_NAMED: Final = 10


def keeps_parameters(env: Mapping[str, str]) -> bool:
    """Whether small parameters go into the list, so that an operator may send a call again. Raises `ConfigError`."""
    said = env.get(SETTING) or "keep"
    if said not in {"keep", "off"}:
        raise ConfigError(f"{SETTING} is `keep` or `off`, not {said!r}")
    return said == "keep"


def is_unknown(failure: Failure) -> bool:
    """Whether nobody knows if a call that ended so was done."""
    return failure.reason is Reason.OUTCOME_UNKNOWN and failure.executed is Executed.MAYBE


@dataclass(slots=True)
class _Waiting:
    reach_id: str
    tenant: str
    call: Call | None
    cause: str
    at: int
    data: bytes = b""
    parameters_bytes: int = 0
    local: bool = False


class Unknowns:
    """The entries of one client on their way."""

    def __init__(self, connection: Connection, *, keep_parameters: bool = True) -> None:
        self._connection = connection
        self._keep = keep_parameters
        self._loop = asyncio.get_running_loop()
        self._line: deque[_Waiting] = deque()
        self._bytes = 0
        self._settled = asyncio.Event()
        """Nothing waits, or what waits does so in vain: there is no list here."""
        self._settled.set()
        self._sender: asyncio.Task[None] | None = None
        self._jetstream: JetStream | None = None
        self._absent_since: float | None = None
        self._closed = False
        self.lost = 0
        """Entries that were given up: the line was full, the broker refuses them, or the client ended."""

    def __len__(self) -> int:
        return len(self._line)

    def add(self, call: Call, failure: Failure, *, local: bool = False) -> None:
        """Enter a call that ended so, if its outcome is unknown. `local` says that it was no call on the bus."""
        if not is_unknown(failure):
            return
        if self._closed or len(self._line) >= MOST_WAITING:
            self._lose([call.reach_id], "too many wait" if not self._closed else "the client has ended")
            return
        tenant = call.envelope.tenant or DEFAULT_TENANT
        at = time.time_ns() // 1_000_000
        self._line.append(_Waiting(call.reach_id, tenant, call, failure.cause or "", at, local=local))
        if self._absent_since is None:
            self._settled.clear()
        if self._sender is None:
            self._sender = asyncio.create_task(self._send(), name="reach unknown outcomes")

    def add_from_thread(self, call: Call, failure: Failure) -> None:
        """Enter a guarded function's call, from whatever thread it ran in."""
        self._loop.call_soon_threadsafe(lambda: self.add(call, failure, local=True))

    async def close(self) -> None:
        """Wait a moment for what is still on its way, and end."""
        with suppress(TimeoutError):  # Then the log says what is left.
            async with asyncio.timeout(CLOSE_S):
                await self._settled.wait()
        self._closed = True
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.wait({self._sender})
        if self._line:
            why = "the client has ended" if self._absent_since is None else "there is no list"
            self._lose([one.reach_id for one in self._line], why)
            self._line.clear()
        if self._jetstream is not None:
            self._jetstream.close()

    # -- on their way --------------------------------------------------------------------------------

    async def _send(self) -> None:
        tries = 0
        while True:
            if not self._line:
                self._sender = None
                self._settled.set()
                return
            await self._pack_all()
            if not await self._connection.wait_connected(_AGAIN_S[-1]):
                await asyncio.sleep(_AGAIN_S[0])
                continue
            if await self._send_first():
                tries = 0
                continue
            await asyncio.sleep(_AGAIN_S[min(tries, len(_AGAIN_S) - 1)])
            tries += 1

    async def _send_first(self) -> bool:
        """Have the first one stored, or given up; False where that has to be tried again."""
        first = self._line[0]
        if self._jetstream is None:
            self._jetstream = JetStream(self._connection)
        try:
            await self._jetstream.publish(
                subjects.unknown(first.tenant), first.data, headers={"Nats-Msg-Id": first.reach_id}
            )
        except (LinkDown, Unacknowledged):
            return False
        except Unreachable as error:
            self._is_absent(error)
            return False
        except SchemaInvalid:
            return self._smaller(first)
        except ReachError as error:
            self._lose([first.reach_id], error.message)
        else:
            if self._absent_since is not None:
                self._absent_since = None
                self._settled.clear()  # The line is not empty yet.
        self._drop_first()
        return True

    def _is_absent(self, error: Unreachable) -> None:
        """Take note that no stream takes entries here; when that lasts nobody need wait for it."""
        now = self._loop.time()
        if self._absent_since is None:
            self._absent_since = now
        elif not self._settled.is_set() and now - self._absent_since >= ABSENCE_S:
            _log.warning("Calls whose outcome is unknown cannot be listed: %s", error.message)
            self._settled.set()

    def _smaller(self, first: _Waiting) -> bool:
        """Leave the parameters of one out that is too large for this broker; without any it is given up."""
        if first.parameters_bytes:
            body = codec.unpack(first.data)
            del body["parameters"]
            self._bytes -= first.parameters_bytes
            first.data, first.parameters_bytes = codec.pack(body), 0
            return False
        self._lose([first.reach_id], "it is too large for this broker")
        self._drop_first()
        return True

    def _drop_first(self) -> None:
        self._bytes -= self._line.popleft().parameters_bytes

    def _lose(self, reach_ids: list[str], why: str) -> None:
        self.lost += len(reach_ids)
        named = ", ".join(reach_ids[:_NAMED]) + (" …" if len(reach_ids) > _NAMED else "")
        _log.error("%d unknown outcomes could not be listed (%s): %s", len(reach_ids), why, named)

    # -- what is said --------------------------------------------------------------------------------

    async def _pack_all(self) -> None:
        """Write down what waits as it is, so that no call's parameters are held for longer than needed."""
        for one in list(self._line):
            if one.call is not None:
                self._pack(one, one.call)
                await asyncio.sleep(0)  # A digest of a megabyte takes a while: others may run in between.

    def _pack(self, one: _Waiting, call: Call) -> None:
        said = outcome_of(call, cause=one.cause, at=one.at, local=one.local)
        body = said.model_dump(exclude_none=True)
        if self._keep and not one.local:
            parameters, size = _small(call.envelope.payload)
            if parameters is not None and self._bytes + size <= MOST_PARAMETERS_BYTES:
                body["parameters"] = parameters
                one.parameters_bytes = size
                self._bytes += size
        one.data = codec.pack(body)
        one.call = None


def _small(payload: dict[str, Any]) -> tuple[dict[str, Any] | None, int]:
    try:
        size = len(codec.pack(payload))
    except NotOnTheWire:
        return None, 0
    return (payload, size) if size <= MAX_PARAMETERS_BYTES else (None, size)


def outcome_of(call: Call, *, cause: str, at: int, local: bool = False) -> UnknownOutcome:
    """Give the entry of a call, without its parameters. `at` is epoch milliseconds."""
    envelope = call.envelope
    last = call.attempts[-1] if call.attempts else None
    try:
        content = "" if local else digest(envelope.payload)
    except NotOnTheWire:
        content = ""
    return UnknownOutcome(
        reach_id=call.reach_id,
        message_id=envelope.message_id,
        kind="local" if local else _KINDS.get(call.kind, "request"),
        tenant=envelope.tenant or DEFAULT_TENANT,
        capability=call.capability,
        cause=cause,
        at=at,
        began_at=call.began_ms,
        provider=None if last is None else last.provider,
        instance=None if last is None else last.instance,
        source=envelope.source,
        agent_id=call.around.agent_id,
        session_id=envelope.session_id,
        task_id=envelope.task_id,
        trace_id=None if envelope.trace is None else envelope.trace.trace_id,
        target=envelope.target,
        require=envelope.require or {},
        idempotency_key=envelope.idempotency_key,
        store_key=None if local else _store_key(call, content),
        digest=content,
        attempts=tuple(
            Tried(
                n=attempt.n,
                subject=attempt.subject,
                provider=attempt.provider,
                instance=attempt.instance,
                reason=attempt.reason,
                took_ms=max(0.0, attempt.took_ms),
                decision=attempt.decision,
            )
            for attempt in call.attempts
        ),
    )


_KINDS: Final[dict[str, Any]] = {"request": "request", "stream": "stream", "publish": "publish"}


def _store_key(call: Call, content: str) -> str | None:
    """Give the key under which the agent remembers the call, as the agent finds it."""
    envelope, card = call.envelope, call.card
    if not envelope.idempotency_key and (not content or card is None):
        return None
    key = key_of(
        tenant=envelope.tenant or DEFAULT_TENANT,
        capability=call.capability,
        idempotency_key=envelope.idempotency_key or None,
        idempotent=call.idempotent,
        session_id=envelope.session_id,
        task_id=envelope.task_id,
        fingerprint=content,
        dedupe=call.kind != "stream" and call.options.dedupe and (card is None or card.dedupe),
    )
    return None if key is None else key.text
