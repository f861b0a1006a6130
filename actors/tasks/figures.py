"""Tasks by state, among the numbers of the platform's process (behaviour SEE-2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reach.observe.metrics import PROCESS, Gauge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reach.observe.metrics import Metrics

NAME: Final = "reach_tasks"


class Figures:
    """Shows how many tasks there are, by capability and state. A fresh start goes on with the gauge that is there."""

    def __init__(self, metrics: Metrics = PROCESS) -> None:
        there = [family for family in metrics.families if family.name == NAME and isinstance(family, Gauge)]
        if there:
            self._gauge = there[0]
        else:
            self._gauge = Gauge(NAME, "Tasks whose events are kept, by state.", "capability", "state")
            metrics.add(self._gauge)

    def show(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Show `counts`: tasks by capability and state."""
        shown = {key for key, value in self._gauge.samples() if value}
        for capability, states in counts.items():
            for state, count in states.items():
                self._gauge.set(count, capability, state)
                shown.discard((capability, state))
        for key in shown:
            self._gauge.set(0, *key)
