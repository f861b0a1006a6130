"""What an instance holds while there is no supervisor to ask (design, section 5).

With a table it goes by what the last leader wrote: a ticket where its tier is in use and its lane is not barred,
none where it stands by, or belongs to a canary, whose part one ticket would overstate. Without a table it takes
part unless a better tier is known. Standing by, it still takes what is addressed to its lane or to itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from reach.policy.canary import belongs
from reach.wire.route import RouteEntry

_BARRED = frozenset({"open", "half_open", "forced_open"})


def tickets_alone(
    *,
    priority: int,
    agent_id: str,
    version: str,
    labels: Mapping[str, str],
    entry: RouteEntry | None,
    lowest_known: int | None,
) -> int:
    """Give the tickets, 0 or 1, that an instance holds of one capability without a supervisor.

    Args:
        priority: Its tier.
        agent_id: Its provider.
        version: Its own.
        labels: Its own.
        entry: What the table says of the capability; None where there is none.
        lowest_known: The best tier among the instances that are known; None where none is.
    """
    if entry is None or not entry.tiers:
        return int(lowest_known is None or priority <= lowest_known)
    canary = entry.canary
    if canary is not None and belongs(canary, version=version, labels=labels):
        return 0
    lane = next((one for one in entry.lanes if one.provider == agent_id), None)
    if lane is not None and lane.breaker.state in _BARRED:
        return int(entry.last_resort and priority in {tier.priority for tier in entry.tiers})
    if lane is not None and lane.terms.traffic == 0:
        return 0
    return int(priority <= max(tier.priority for tier in entry.tiers))
