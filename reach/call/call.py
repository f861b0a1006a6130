"""One call under way: everything the pipeline's steps hand to one another.

Built by *prepare*, filled by the other steps, turned into the record by *tell*. It lives in the caller's
process only; what crosses the wire is the envelope inside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

from reach.bus.pending import Pending
from reach.call.choose import Route
from reach.call.context import CallContext
from reach.call.lanes import Lane
from reach.call.options import Options
from reach.faults import Executed
from reach.policy.retry import MAX_ATTEMPTS, timeout_may_retry
from reach.wire.card import CapabilityCard
from reach.wire.envelope import Envelope
from reach.wire.record import Attempt, CallKind

if TYPE_CHECKING:
    from reach.call.keeping import KeptAnswer
    from reach.call.thrift import Toll
    from reach.policy.cache import Kept
    from reach.wire.reply import Failure, Reply


class Saved(Struct, gc=False):
    """How a call was answered that was not made itself: by the call `reach_id`, of which `provider` had the last try.

    `cached`: that call had ended before; `stale`: longer ago than its answer's time to live. `sent`: it went out.
    """

    reach_id: str
    provider: str | None
    instance: str | None
    cached: bool = False
    stale: bool = False
    batched: bool = False
    sent: bool = False


class Call(Struct, gc=False, eq=False):
    """Times are loop seconds; `attempts` is what the record will say of each try."""

    capability: str
    kind: CallKind
    envelope: Envelope
    options: Options
    around: CallContext
    reach_id: str
    began: float
    began_ms: int
    deadline: float
    card: CapabilityCard | None = None
    attempts: list[Attempt] = field(default_factory=list)
    avoid: set[str] | None = None
    """Instances that have failed this call."""
    admitted: float = 0.0
    lane: Lane | None = None
    """The lane of the last attempt that somebody answered."""
    route: Route | None = None
    """Where the attempt under way went, as long as it holds a place there, or a permit."""
    level: int = 0
    """Tiers below the best one that the last attempt went to."""
    fallback: str = ""
    """The word for what took the failure's place."""
    holds_slot: bool = False
    given_up: bool = False
    """Its round has ended: nobody waits for it any more."""
    handler_ms: float = 0.0
    inner_retried: bool = False
    data_frames: int = 0
    going_on: Pending | None = None
    """An attempt that was not stopped when its time was over."""
    thrifty: bool = False
    """Whether it has to ask first if it may be made, or need not be (`reach.call.thrift`)."""
    local_share: bool = False
    """Whether it was let in by this process's own share of a limit, since callers could not be counted together."""
    cost: float = 0.0
    """What its answers said that they have cost."""
    shared: bool = False
    """Whether it is made for others, who wait for it: `waiters` have."""
    waiters: int = 0
    saved: Saved | None = None
    """How it was answered, where it was not made itself."""
    stale: Kept[KeptAnswer] | None = None
    """An old answer, for when it fails."""
    paid: list[Toll] | None = None
    """What it has paid, and has to give back in the end."""

    @property
    def idempotent(self) -> bool:
        """Whether the capability says that repeating it is safe; not declared means not."""
        return self.card is not None and self.card.idempotent

    @property
    def provider(self) -> str | None:
        """Who had the last attempt, as far as is known."""
        if self.attempts:
            return self.attempts[-1].provider
        return None if self.saved is None else self.saved.provider

    @property
    def executed(self) -> Executed:
        """What is known about execution over all attempts: `maybe` as soon as one of them was."""
        if self.saved is not None:
            return Executed.MAYBE if self.saved.sent else Executed.NO
        known = [attempt.executed for attempt in self.attempts]
        if Executed.YES in known:
            return Executed.YES
        # An attempt that nobody has judged was sent.
        return Executed.MAYBE if Executed.MAYBE in known or None in known else Executed.NO

    @property
    def keyed(self) -> bool:
        """Whether the call carries an idempotency key."""
        return self.envelope.idempotency_key is not None

    @property
    def goes_on(self) -> bool:
        """Whether an attempt goes on at its agent when its time is over, and the next one asks for its result.

        So for a write with a key: stopped in the middle, nobody could tell what became of it, and the next attempt
        would be told that. What may be done again is better begun anew.
        """
        return self.envelope.idempotency_key is not None and not self.idempotent

    @property
    def may_retry_timeouts(self) -> bool:
        """Whether a timeout of the next attempt could be followed by another (CALL-3)."""
        return timeout_may_retry(
            idempotent=self.card is not None and self.card.idempotent,
            keyed=self.envelope.idempotency_key is not None,
            attempt=len(self.attempts) + 1,
            max_attempts=self.max_attempts,
        )

    @property
    def max_attempts(self) -> int:
        """How often it may be tried in all."""
        return MAX_ATTEMPTS if self.options.retry and not self.around.again else 1


class Outlived(Exception):
    """A step of the pipeline ended the call; `failure` is what to tell."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


class Answered(Exception):
    """A step of the pipeline had the answer; nothing needs to be sent."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.ok)
        self.reply = reply
