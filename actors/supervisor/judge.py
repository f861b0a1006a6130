"""What callers tell of lanes, put where it belongs: books, breakers, probes, and who of a lane fails alone.

A caller speaks of the capability that it asked for. Where a provider served it by a more general name (behaviour
ROUTE-4), it is that lane's, whose breaker and figures are one for all that it serves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reach.policy.hotspot import hottest

if TYPE_CHECKING:
    from actors.supervisor.letters import Moment
    from actors.supervisor.outcomes import Ledger
    from actors.supervisor.planner import Planner
    from actors.supervisor.roster import Roster
    from actors.supervisor.verdicts import Lane, Verdicts
    from reach.wire.outcomes import LaneOutcomes, Outcomes
    from reach.wire.registration import PermitAnswer, PermitAsk, PermitOutcome


LOOK_EACH_S: Final = 5.0
"""How often a hashed lane is looked at for an instance that has too many of its calls."""


class Judge:
    """Takes outcomes in for one leader; gives the lanes (provider, capability) whose breaker is in another state."""

    def __init__(self, roster: Roster, ledger: Ledger, verdicts: Verdicts, planner: Planner) -> None:
        self._roster = roster
        self._ledger = ledger
        self._verdicts = verdicts
        self._planner = planner
        self._looked_at: dict[Lane, float] = {}
        self.hot: list[tuple[Lane, str]] = []
        """Hashed lanes of which one instance has far more than its share, in words; to be taken out."""

    def digest(self, told: Outcomes, moment: Moment) -> list[Lane]:
        """Add a client's digest up, and judge its lanes; those that nobody knows are left out."""
        known = []
        for lane in told.lanes:
            name = self._planner.serving(lane.provider, lane.capability)
            if name is not None:
                known.append(
                    lane if name == lane.capability else lane.model_copy(update={"capability": name})
                )
        digest = self._ledger.take(told.model_copy(update={"lanes": tuple(known)}), moment.now)
        turned: list[Lane] = []
        for lane, latencies in () if digest is None else digest.lanes:
            judged = self._without_failing(lane, moment)
            card = self._roster.card(lane.capability, lane.provider)
            self._verdicts.breaker((lane.provider, lane.capability), slow_ms=card.slow_ms)
            span_s = 1.0 if digest is None else digest.span_s
            if self._verdicts.feed(judged, latencies, span_s=span_s, now=moment.now):
                turned.append((lane.provider, lane.capability))
            self._planner.told(lane.provider, lane.capability, moment.now)
            if self._planner.choice(lane.capability).strategy.name == "consistent_hash":
                self._look_for_heat(lane.provider, lane.capability, moment)
        return turned

    def _look_for_heat(self, provider: str, capability: str, moment: Moment) -> None:
        """Notice an instance that has far more than its share (ROUTE-10)."""
        key = (provider, capability)
        book = self._ledger.book(*key)
        if book is None or moment.now - self._looked_at.get(key, -LOOK_EACH_S) < LOOK_EACH_S:
            return
        self._looked_at[key] = moment.now
        plan = self._planner.plans.get(capability)
        lane = None if plan is None else next((one for one in plan.lanes if one.provider == provider), None)
        if lane is None:
            return
        told, total = book.by_instance(moment.now)
        found = hottest(told, {name: lane.factor(name) for name in lane.members}, total=total)
        if found is not None:
            name, times = found
            self.hot.append((key, f"{name} has {times:.1f} times its share of the calls of a minute"))

    def _without_failing(self, lane: LaneOutcomes, moment: Moment) -> LaneOutcomes:
        """Note who of the lane fails alone, and take their calls out: they say nothing of the provider."""
        book = self._ledger.book(lane.provider, lane.capability)
        failing = {} if book is None else book.failing(moment.now)
        for name, member in self._roster.lanes(lane.capability).get(lane.provider, {}).items():
            why = failing.get(name)
            if (why is None) != (member.failing is None):
                self._planner.touch(member.serves)
                self._roster.watch(name)
            member.failing = why
        theirs = [one for one in lane.instances if one.instance in failing]
        if not theirs:
            return lane
        failed = min(lane.failed, sum(one.failed for one in theirs))
        good = min(lane.ok, sum(one.calls - one.failed for one in theirs if one.calls > one.failed))
        changes = {"failed": lane.failed - failed, "ok": lane.ok - good, "failed_in_a_row": 0}
        return lane.model_copy(update=changes)

    def permit(self, ask: PermitAsk, moment: Moment) -> PermitAnswer:
        """Answer a caller that wants to probe a lane."""
        return self._verdicts.permit(
            (ask.provider, self._planner.serving(ask.provider, ask.capability) or ask.capability),
            now=moment.now,
            at_ms=moment.at_ms,
            expires_at_ms=ask.expires_at,
        )

    def probed(self, outcome: PermitOutcome, moment: Moment) -> list[Lane]:
        """Take in what became of a probe."""
        name = self._planner.serving(outcome.provider, outcome.capability) or outcome.capability
        lane = (outcome.provider, name)
        turned = self._verdicts.probed(
            lane, outcome.permit, failed=outcome.failed, latency_ms=outcome.latency_ms, now=moment.now
        )
        return [lane] if turned else []
