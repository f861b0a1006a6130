"""The structure of parameters against their capability's schema: compiled at first use, kept as long as its card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reach.registry.structure import Check, compile_check

if TYPE_CHECKING:
    from reach.wire.card import CapabilityCard


class Checks:
    """The checks of one client."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[CapabilityCard, Check | None]] = {}

    def wrong(self, card: CapabilityCard, parameters: dict[str, Any]) -> str | None:
        """Say what is wrong with parameters; None for what may be sent."""
        if card.input_schema is None:
            return None
        known = self._known.get(card.tag)
        if known is None or known[0] is not card:
            known = self._known[card.tag] = (card, compile_check(card.input_schema))
        check = known[1]
        return None if check is None else check(parameters)
