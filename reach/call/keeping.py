"""The answers that one client keeps to give them again (GUARD-5); the rules are `reach.policy.cache`'s.

An answer is kept where its card says `cache`, if it is a good one: no failure, and not degraded, for the usual answer
should be had again as soon as it can be. It is kept as msgpack, and unpacked anew for each who gets it. When the
capability's card changes, or other versions of its agents serve it, what was kept is not given any more.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from reach.call.call import Saved
from reach.errors import NotOnTheWire
from reach.policy.cache import AnswerCache
from reach.wire import codec
from reach.wire.reply import Reply

if TYPE_CHECKING:
    from reach.call.call import Call
    from reach.call.flight import Landed
    from reach.call.question import Question
    from reach.observe.metrics import Metrics
    from reach.registry.cards import CardDirectory
    from reach.wire.card import CapabilityCard

_MAX_FACES = 10_000


class KeptAnswer(NamedTuple):
    """A result as msgpack, who gave it, and the call that brought it."""

    packed: bytes
    provider: str | None
    instance: str | None
    attempt: int
    reach_id: str
    batched: bool

    def reply_to(self, call: Call, *, stale: bool = False) -> Reply:
        """Give it as the answer to a call."""
        call.saved = Saved(
            self.reach_id, self.provider, self.instance, cached=True, stale=stale, batched=self.batched
        )
        return Reply(
            ok=True,
            data=self.data,
            message_id=call.envelope.message_id,
            provider=self.provider,
            instance=self.instance,
            attempt=self.attempt,
            cached=True,
            stale=stale,
        )

    @property
    def data(self) -> object:
        """The result, as a copy of its own."""
        return codec.unpack(self.packed)["data"]


class _Face(NamedTuple):
    """What a capability was when an answer was kept."""

    card: CapabilityCard
    versions: frozenset[str]


class Keeper:
    """The kept answers of one client."""

    def __init__(self, directory: CardDirectory, metrics: Metrics) -> None:
        self._directory = directory
        self._counts = metrics.cache
        self.answers: AnswerCache[KeptAnswer] = AnswerCache()
        self._faces: dict[str, tuple[int, _Face]] = {}

    def look(self, call: Call, question: Question, card: CapabilityCard) -> Reply | None:
        """Give the kept answer to a call while it is fresh; a stale one is left with it for when it fails."""
        if card.cache is None:
            return None
        now = monotonic()
        kept = self.answers.look(question, now=now, face=self._face(card))
        if kept is None:
            self._counts.add(question.capability, "miss")
            return None
        if kept.is_fresh(now):
            self._counts.add(question.capability, "hit")
            return kept.answer.reply_to(call)
        self._counts.add(question.capability, "miss")
        call.stale = kept
        return None

    def keep(self, question: Question, card: CapabilityCard, landed: Landed) -> None:
        """Keep an answer that arrived just now, where its card says so and it is a good one."""
        reply = landed.reply
        if card.cache is None or not reply.ok or reply.degraded:
            return
        try:
            packed = codec.pack_plain({"data": reply.data})
        except NotOnTheWire:
            return  # Larger than what one message may be: it came in pieces, and is too large to keep.
        self.answers.keep(
            question,
            KeptAnswer(
                packed, reply.provider, reply.instance, reply.attempt, landed.reach_id, landed.batched
            ),
            size=len(packed),
            now=monotonic(),
            face=self._face(card),
            ttl_s=card.cache.ttl_s,
            stale_s=card.cache.stale_if_error_s,
        )

    def doubt(self, question: Question) -> None:
        """Somebody asks anew, past what is kept: who asks next must not get something older than that."""
        self.answers.doubt(question, now=monotonic())

    def _face(self, card: CapabilityCard) -> _Face:
        """Give what a capability is now; looked up again only when something has changed among the agents."""
        changes = self._directory.changes
        known = self._faces.get(card.tag)
        if known is not None and known[0] == changes and known[1].card is card:
            return known[1]
        versions = frozenset(one.version for one in self._directory.cards(card.tag))
        if not versions and known is not None:
            versions = known[1].versions  # Nobody is there now, which is when a stale answer is worth most.
        if len(self._faces) >= _MAX_FACES:
            self._faces.clear()
        face = _Face(card, versions)
        self._faces[card.tag] = (changes, face)
        return face
