"""How much time a call has, and how much of it one attempt gets (behaviour CALL-1, CALL-3).

A caller may ask for less than what surrounds its call, never for more. While a timeout could still be
answered with another attempt, an attempt gets 70 % of the time left, so that the second one is worth
starting; the last attempt gets everything less a small margin, in which the failure can be told before the
deadline instead of after it.
"""

from __future__ import annotations

import math
from typing import Final

from reach.wire.card import CapabilityCard

DEFAULT_TIMEOUT_S: Final = 15.0
"""What a capability gets whose card names neither a timeout nor a hint (CALL-1)."""

ROUND_TIMEOUT_S: Final = 30.0
"""What one decision round gets by default (CALL-1)."""

HINT_FACTOR: Final = 1.2
"""A `timeout_hint_ms` is what the agent expects to need; this is the room given on top of it (CALL-1)."""

ATTEMPT_SHARE: Final = 0.7
"""The most that an attempt gets of the time left while another may follow (CALL-3)."""

_MARGIN_S: Final = 0.020
_MARGIN_SHARE: Final = 0.05
_LEAST_SHARE: Final = 1 - _MARGIN_SHARE
_LONG_S: Final = _MARGIN_S / _MARGIN_SHARE


def card_timeout_s(card: CapabilityCard | None) -> float:
    """Give a capability's own timeout in seconds: `timeout_s`, else its hint × 1.2, else 15 s."""
    if card is not None:
        if card.timeout_s is not None:
            return card.timeout_s
        if card.timeout_hint_ms is not None:
            return card.timeout_hint_ms / 1000 * HINT_FACTOR
    return DEFAULT_TIMEOUT_S


def narrow(asked_s: float | None, default_s: float, *surrounding_s: float | None) -> float:
    """Give the seconds that a call has: what was asked (else `default_s`), within all that surrounds it.

    `surrounding_s` is what the enclosing call, round and cancel scope have left; None where there is no
    such thing, and infinity is as good as None. What has run out gives 0, never less.

    Raises `ValueError` when `asked_s` is not a positive number.
    """
    if asked_s is not None and not asked_s > 0:
        raise ValueError(f"timeout_s is a positive number of seconds, not {asked_s!r}")
    left_s = default_s if asked_s is None else asked_s
    for bound_s in surrounding_s:
        if bound_s is not None and bound_s < left_s:
            left_s = bound_s
    return max(0.0, left_s)


def attempt_share_s(left_s: float, *, may_retry: bool) -> float:
    """Give the seconds that the next attempt gets of the `left_s` that the call has.

    `may_retry` says that a timeout of this attempt would be retryable and that another attempt is possible.
    The margin is max(20 ms, 5 %), but never more than half of what is left, so that a call with 10 ms to live
    is still sent. An infinite `left_s` gives infinity.
    """
    if _LONG_S <= left_s < math.inf:  # Nearly every call: the shares alone decide.
        return left_s * (ATTEMPT_SHARE if may_retry else _LEAST_SHARE)
    if left_s <= 0:
        return 0.0
    if math.isinf(left_s):
        return left_s
    margin_s = min(max(_MARGIN_S, left_s * _MARGIN_SHARE), left_s / 2)
    share_s = left_s - margin_s
    return min(share_s, left_s * ATTEMPT_SHARE) if may_retry else share_s
