"""How long to wait before the next attempt.

`base × 2^(attempt − 1)`, spread by a factor between one half and one and a half, so that those who failed
together do not come back together. The spread survives at the cap: a plain `min(cap, …)` would gather
everybody there again. Randomness is an argument; nothing here draws it.
"""

from __future__ import annotations

import math
from typing import Final

SPREAD: Final = (0.5, 1.5)
"""The factor's range (behaviour RETRY-4)."""


def delay_s(attempt: int, *, base_s: float, jitter: float, cap_s: float = math.inf) -> float:
    """Seconds to wait before attempt number `attempt` is repeated.

    Args:
        attempt: How many attempts have failed, from 1.
        base_s: The middle of the first delay; 0 means none at all.
        jitter: A random number, uniform in [0, 1).
        cap_s: No delay is longer than this.

    Returns:
        A value in [0, cap_s].

    Raises:
        ValueError: an argument is out of its range.
    """
    if attempt < 1:
        raise ValueError(f"attempt counts from 1, not {attempt}")
    if not 0 <= jitter < 1:
        raise ValueError(f"jitter is uniform in [0, 1), not {jitter}")
    if not (base_s >= 0 and cap_s >= 0):  # Written so that NaN is refused too.
        raise ValueError(f"delays are not negative: base_s={base_s}, cap_s={cap_s}")
    low, high = SPREAD
    try:
        middle = math.ldexp(base_s, attempt - 1)
    except OverflowError:  # Ten million attempts later the cap decides, as it did long before.
        middle = math.inf
    middle = min(middle, cap_s / high)
    return min(middle * (low + jitter), cap_s)
