"""How often, and how many at once, all callers together may call a capability: the toll of its card's `rate`.

One gate for each limit (`reach.call.gate`): a capability's, or its for one tenant. A call that finds no room is refused
before anything is sent, and told whose limit it was, how much of it is used and when to come again; with `queue=True`
it waits for room, as long as its own deadline allows, without holding a place anywhere (GUARD-3, ERR-6).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from reach.bus.counters import token
from reach.call.call import Outlived
from reach.call.gate import CrowdedError, Gate, Grant
from reach.faults import Executed, Reason
from reach.policy.rate import LOCAL_SHARE, Full, RateLimit
from reach.wire.reply import Failure
from reach.wire.task import DEFAULT_TENANT

if TYPE_CHECKING:
    from reach.bus.connection import Connection
    from reach.bus.counters import SharedCounts
    from reach.call.call import Call
    from reach.observe.metrics import Metrics
    from reach.wire.card import Rate

MAX_GATES: Final = 10_000
"""Limits that are remembered; past it those that nobody uses are forgotten."""

RETRY_AFTER_MS: Final = 250
"""What is told where room comes when somebody's call ends, which nobody knows."""


class Quota:
    """The toll of rates, for one client."""

    def __init__(self, connection: Connection, shared: SharedCounts, metrics: Metrics) -> None:
        self._connection = connection
        self._shared = shared
        self._metrics = metrics
        self._gates: dict[tuple[str, str], Gate] = {}
        self._inside: dict[str, tuple[Gate, Grant]] = {}

    async def pay(self, call: Call, payer: Call) -> None:
        """Wait to be let in where the card limits the rate. Raises `Outlived` where there is no room."""
        rate = None if call.card is None else call.card.rate
        if rate is None or (rate.calls is None and rate.concurrent is None):
            return
        tenant = (payer.envelope.tenant or DEFAULT_TENANT) if rate.per == "tenant" else ""
        gate = self._gate(call.capability, tenant, rate)
        # The place that a nested call would wait for may be held by the call it is nested in (CALL-4).
        own = rate.concurrent is not None and call.capability in (payer.envelope.chain or ())
        try:
            grant = await gate.enter(deadline=call.deadline, queues=payer.options.queue and not own)
        except CrowdedError as crowded:
            raise Outlived(self._refusal(call, tenant, rate, crowded)) from None
        self._inside[call.reach_id] = gate, grant
        if not grant.shared:
            call.local_share = True
            self._metrics.quota_local.add(call.capability)

    def leave(self, call: Call) -> None:
        """Give back what a call held; its unit too, where it was never sent."""
        inside = self._inside.pop(call.reach_id, None)
        if inside is not None:
            gate, grant = inside
            gate.leave(grant, used=bool(call.attempts))

    async def close(self) -> None:
        """Say that nothing is under way here any more."""
        gates, self._gates = list(self._gates.values()), {}
        await asyncio.gather(*(gate.close() for gate in gates))

    def _gate(self, capability: str, tenant: str, rate: Rate) -> Gate:
        limit = RateLimit(rate.calls, round(rate.per_s * 1000), rate.concurrent)
        gate = self._gates.get((capability, tenant))
        if gate is None:
            if len(self._gates) >= MAX_GATES:
                self._gates = {key: one for key, one in self._gates.items() if not one.is_idle}
            key = f"tenant.{token(tenant)}.{capability}" if tenant else f"all.{capability}"
            gate = self._gates[capability, tenant] = Gate(
                key,
                limit,
                client=self._connection.client_id,
                shared=self._shared,
                now_ms=self._connection.broker_time.now_ms,
            )
        elif gate.limit != limit:
            gate.limit = limit  # The card is another one now.
        return gate

    def _refusal(self, call: Call, tenant: str, rate: Rate, crowded: CrowdedError) -> Failure:
        full = crowded.full
        if full is None:
            return Failure.of(Reason.DEADLINE, executed=Executed.NO)
        self._metrics.quota_refused.add(call.capability, full.what)
        return refusal(call.capability, tenant, rate.per_s, full, shared=crowded.shared)


def refusal(capability: str, tenant: str, per_s: float, full: Full, *, shared: bool) -> Failure:
    """Say which limit, whose, how much of it is used, and when to come again (ERR-6)."""
    calls = full.what == "calls"
    name = f"calls of {capability} in {per_s:g} s" if calls else f"calls of {capability} at once"
    owner = f"tenant {tenant}, all callers together" if tenant else "all callers together"
    if not shared:
        owner = f"this process alone (1/{LOCAL_SHARE} of the limit while callers cannot be counted together)"
    resets_in_ms = RETRY_AFTER_MS if full.resets_in_ms is None else full.resets_in_ms
    how = f"within {per_s:g} s" if calls else "under way"
    return Failure.of(
        Reason.QUOTA_EXCEEDED,
        f"{full.used} of {full.allowed} calls of {capability} {how} are taken ({owner})",
        retry_after_ms=resets_in_ms,
        limit={
            "name": name,
            "owner": owner,
            "used": full.used,
            "allowed": full.allowed,
            "resets_in_ms": resets_in_ms,
        },
    )
