"""Whether an instance should be given calls, as it finds itself: its agent's word, and its own load (LIFE-5).

What is found goes into heartbeats, and out of turn when it is another matter than before. With a supervisor that is
all: it puts others in place first, and never takes most of a lane out. Without one the instance steps aside by itself:
always when its agent is not ready, under load only where somebody else serves the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from reach.errors import ConfigError, LinkDown
from reach.policy import load as overload
from reach.runtime.load import Load, LoadMeter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reach.registry.cards import CardDirectory
    from reach.runtime.condition import Condition
    from reach.runtime.membership import Membership

RSS_LIMIT: Final = "REACH_RSS_LIMIT_MB"
"""The setting: memory over which an instance takes no calls, in 10^6 bytes; nothing is no limit."""

LOOK_S: Final = 1.0
"""How long a load is measured before it is judged."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How an instance finds itself. `busy` says why it has too much to do; None: it has not."""

    ready: bool
    health: str
    busy: str | None
    queue: int
    load: Load

    @property
    def takes_calls(self) -> bool:
        """Whether it should be given any."""
        return self.ready and self.busy is None


def limits_of(env: Mapping[str, str]) -> overload.LoadLimits:
    """Read the limits of load from the environment. Raises `ConfigError` for what is no number."""
    told = env.get(RSS_LIMIT, "").strip()
    if not told:
        return overload.LIMITS
    try:
        megabytes = float(told)
    except ValueError:
        megabytes = 0.0
    if not 0 < megabytes < float("inf"):
        raise ConfigError(f"{RSS_LIMIT} is {told!r}. Right would be a number of megabytes, such as 512.")
    return overload.LoadLimits(rss_bytes=int(megabytes * 1_000_000))


class Fitness:
    """Judges one instance; `queue` gives its requests that wait for a place."""

    def __init__(
        self, condition: Condition, *, queue: Callable[[], int], limits: overload.LoadLimits = overload.LIMITS
    ) -> None:
        self.condition = condition
        self._queue = queue
        self._limits = limits
        self._meter = LoadMeter()
        self._told: Fit | None = None

    def start(self) -> None:
        """Measure from now on."""
        self._meter.start()

    def stop(self) -> None:
        """Measure no more."""
        self._meter.stop()

    @property
    def told(self) -> Fit | None:
        """What was found by the last `look`."""
        return self._told

    def look(self) -> Fit:
        """Judge, and begin to measure anew: for a heartbeat."""
        self._told = found = self._judged(self._meter.look())
        return found

    def moved(self, *, measured_s: float) -> bool:
        """Say whether it is another matter than at the last `look`, so many seconds ago."""
        told, said = self._told, self.condition
        if told is None or (told.ready, told.health) != (said.ready, said.health):
            return True
        return measured_s >= LOOK_S and (self._judged(self._meter.peek()).busy is None) != (told.busy is None)

    def _judged(self, load: Load) -> Fit:
        queue = self._queue()
        busy = overload.judge(
            cpu=load.cpu,
            queue=queue,
            rss_bytes=load.rss_bytes,
            was_busy=self._told is not None and self._told.busy is not None,
            limits=self._limits,
        )
        return Fit(self.condition.ready, self.condition.health, busy, queue, load)


class Aside:
    """Steps out of the queue groups where nobody leads, and back in."""

    def __init__(self, membership: Membership, cards: CardDirectory, instance: str) -> None:
        self._membership = membership
        self._cards = cards
        self._instance = instance
        self._held: dict[str, int] | None = None

    def forget(self) -> None:
        """A supervisor says what is held: there is nothing to go back to."""
        self._held = None

    async def settle(self, fit: Fit) -> None:
        """Step aside, or back in. Raises `LinkDown`, `CallTimeout` when the broker did not confirm."""
        if fit.takes_calls:
            if self._held is not None:
                held, self._held = self._held, None
                await self._membership.follow(held)
        elif self._held is None:
            held = self._membership.held
            leaving = held.keys() if not fit.ready else await self._served_by_others()
            self._held = {name: held[name] for name in leaving if name in held}
            await self._membership.follow(dict.fromkeys(self._held, 0), off_lane=tuple(self._held))

    async def _served_by_others(self) -> set[str]:
        """Give the capabilities that somebody else serves, who is there and takes calls."""
        try:
            others = await self._cards.everybody()
        except LinkDown:
            return set()
        return {
            one.tag
            for card in others
            for one in card.capabilities
            if card.instance != self._instance and card.ready
        }
