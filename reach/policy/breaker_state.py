"""The states of a breaker, and where each may lead."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """What a breaker does with calls."""

    CLOSED = "closed"
    """Lets all through, and judges them."""
    OPEN = "open"
    """Refuses all until its wait is over."""
    HALF_OPEN = "half_open"
    """Lets probes through, by permits."""
    FORCED_OPEN = "forced_open"
    """Refuses all, because an operator said so."""
    DISABLED = "disabled"
    """Lets all through and judges none, because an operator said so."""


_OPERATOR: Final = frozenset({State.CLOSED, State.FORCED_OPEN, State.DISABLED})

MOVES: Final[dict[State, frozenset[State]]] = {
    State.CLOSED: frozenset({State.OPEN, State.FORCED_OPEN, State.DISABLED}),
    State.OPEN: frozenset({State.HALF_OPEN}) | _OPERATOR,
    State.HALF_OPEN: frozenset({State.OPEN}) | _OPERATOR,
    State.FORCED_OPEN: frozenset({State.CLOSED, State.DISABLED}),
    State.DISABLED: frozenset({State.CLOSED, State.FORCED_OPEN}),
}
"""Where each state may lead. Another move is a fault of this module, and raises."""
