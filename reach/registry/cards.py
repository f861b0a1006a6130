"""What a caller knows about who serves what, before there is a supervisor.

Cards come in the answers to `$SRV.INFO`. The first use of a capability asks everybody and waits only until one
answer serves it; from then on everything is answered from memory, and while it is used one sweep each 30 s
keeps it fresh. Knowledge is never needed to call: without it a call goes out unchecked. Where instances of one
capability say different things, callers get what is safe for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import json
import math
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pydantic import ValidationError

from reach.chance import random
from reach.errors import LinkDown, ReachError
from reach.wire.card import CapabilityCard, Card, Rate

INFO: Final = "$SRV.INFO"
CARD_KEY: Final = "reach.card"

FIRST_S: Final = 0.25
"""How long the first call of an unknown capability waits for its card."""

STALL_S: Final = 0.15
"""A sweep is over when nobody has answered for this long."""

SWEEP_S: Final = 2.0
"""A sweep is over after this long in any case."""

REFRESH_S: Final = 30.0
"""How old knowledge may become while it is used; each answer of the last sweep adds `PER_ANSWER_S`."""

PER_ANSWER_S: Final = 0.1
"""So that the more agents there are, the less often every caller asks all of them."""

UNKNOWN_S: Final = 2.0
"""How long a capability that nobody serves is not asked for again."""

APART_S: Final = 2.0
"""Least time between two sweeps that somebody asks for."""

MAX_INSTANCES: Final = 20_000
MAX_CAPABILITIES: Final = 20_000
MAX_UNKNOWN: Final = 4_096
_MISSES: Final = 2
_UNSAID_S: Final = 15.0  # What a card without a timeout means (behaviour CALL-1).


class Link(Protocol):
    """What the directory needs of a connection."""

    @property
    def connected(self) -> bool:
        """Whether there is a link right now."""
        ...

    def request_many(
        self, subject: str, data: bytes, *, timeout_s: float, stall_s: float | None = None
    ) -> AsyncIterator[bytes]:
        """Ask everybody and yield the answers."""
        ...


@dataclass(slots=True)
class _Known:
    """One instance: its card, the text it came as, and how many sweeps it has not answered."""

    card: Card
    text: str
    missed: int = 0


class CardDirectory:
    """Cards of the instances that are there, by capability. Belongs to one event loop; end it with `close`."""

    def __init__(self, connection: Link) -> None:
        self._link = connection
        self._loop = asyncio.get_running_loop()
        self._instances: dict[str, _Known] = {}
        self._by_capability: dict[str, dict[str, Card]] = {}
        self._merged: dict[str, CapabilityCard] = {}
        self._more_general: dict[str, str] = {}
        self.thrifty: set[str] = set()
        """Capabilities whose cards are thrifty: a look that each call can afford."""
        self._unknown: dict[str, float] = {}
        self._changed = asyncio.Event()
        # The directory's one task, a sweep; owned here, ended and awaited by close().
        self._sweep: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._used = False
        self._closed = False
        self._answers = 0
        self._swept_at = -APART_S
        self.changes = 0
        """Grows with each change of what is known."""
        self.garbage = 0
        """Answers that held no readable card. (Services that are not ours answer too; they are not counted.)"""

    # -- from memory ---------------------------------------------------------------------------------

    def known(self, capability: str) -> CapabilityCard | None:
        """Give what is known of a capability, without asking anybody."""
        self._used = True
        found = self._merged.get(capability)
        if found is None and self._more_general:
            found = self._merged.get(self._more_general.get(capability, ""))
            self._note_thrift(capability, found)
        return found

    def goes_by(self, capability: str, general: str | None) -> None:
        """Take it that a capability without a card of its own is served as a more general one; None: no longer."""
        if general is None:
            self._more_general.pop(capability, None)
        else:
            self._more_general[capability] = general

    def cards(self, capability: str) -> tuple[Card, ...]:
        """Give the known instances of a capability."""
        self._used = True
        return tuple(self._by_capability.get(capability, {}).values())

    def only_provider(self, capability: str) -> str | None:
        """Give the one agent that is known to serve a capability; None where it is none, or several."""
        providers = {card.agent_id for card in self._by_capability.get(capability, {}).values()}
        return providers.pop() if len(providers) == 1 else None

    def serves(self, agent_id: str, capability: str) -> bool:
        """Whether an agent, or one instance of one, is known to serve a capability."""
        return any(
            agent_id in {card.agent_id, card.instance}
            for card in self._by_capability.get(capability, {}).values()
        )

    def nearest(self, name: str) -> list[str]:
        """Give the known capability names that look most like `name`, best first, at most three."""
        return difflib.get_close_matches(name, self._merged, n=3)

    # -- by asking -----------------------------------------------------------------------------------

    async def card_for(self, capability: str) -> CapabilityCard | None:
        """Give what is known of a capability; when nothing is, ask, and wait at most `FIRST_S` for an answer.

        Returns at once when nobody at all listens, when the link is down, or when nobody served it a moment ago.
        """
        found = self.known(capability)
        if found is not None or self._closed:
            return found
        now = self._loop.time()
        if self._unknown.get(capability, -UNKNOWN_S) + UNKNOWN_S > now or not self._link.connected:
            return None
        deadline = now + FIRST_S
        asked = False
        while (found := self._merged.get(capability)) is None:
            if self._sweep is None:
                # A sweep that was under way may have begun before this capability's agent was there.
                if asked:
                    break
                self._begin_sweep()
                asked = True
            self._changed.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                break
        if found is None:
            self._note_unknown(capability)
        return found

    async def instances(self, capability: str) -> tuple[Card, ...]:
        """Give every instance of a capability that answers now. Raises `LinkDown` when there is no link."""
        return tuple(
            card for card in await self.everybody() if any(one.tag == capability for one in card.capabilities)
        )

    async def everybody(self, *, timeout_s: float = 0.5, stall_s: float = STALL_S) -> list[Card]:
        """Ask everybody, and give all cards that came: until `timeout_s`, or `stall_s` without a new one.

        Raises `LinkDown` when there is no link.
        """
        seen: dict[str, Card] = {}
        async for data in self._link.request_many(INFO, b"", timeout_s=timeout_s, stall_s=stall_s):
            card = self._learn(data)
            if card is not None:
                seen[card.instance] = card
        return sorted(seen.values(), key=lambda card: (card.agent_id, card.instance))

    def refresh(self) -> None:
        """Ask everybody again soon: somebody has heard of instances that are not known here."""
        if self._closed or self._sweep is not None or not self._link.connected:
            return
        wait_s = max(0.0, self._swept_at + APART_S - self._loop.time())
        if self._timer is not None:
            self._timer.cancel()
        self._used = True
        self._timer = self._loop.call_later(wait_s + APART_S / 8 * random(), self._refresh)

    async def close(self) -> None:
        """Ask no more; whoever waits for a card goes without."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sweep is not None:
            self._sweep.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweep
        self._changed.set()

    # -- sweeps --------------------------------------------------------------------------------------

    def _begin_sweep(self) -> None:
        if self._sweep is None and not self._closed:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._sweep = self._loop.create_task(self._run_sweep(), name="reach card sweep")

    async def _run_sweep(self) -> None:
        self._used = False
        self._swept_at = self._loop.time()
        seen: set[str] = set()
        whole = False
        try:
            async for data in self._link.request_many(INFO, b"", timeout_s=SWEEP_S, stall_s=STALL_S):
                card = self._learn(data)
                if card is not None:
                    seen.add(card.instance)
            whole = self._link.connected
        except (LinkDown, ReachError):
            whole = False  # Without a link there is nothing to learn, and nothing to forget either.
        finally:
            self._sweep = None
            self._changed.set()
        if whole:
            self._answers = len(seen)
            self._forget_missing(seen)
        self._schedule()

    def _schedule(self) -> None:
        if not self._closed and self._timer is None:
            self._timer = self._loop.call_later(REFRESH_S + PER_ANSWER_S * self._answers, self._refresh)

    def _refresh(self) -> None:
        """Sweep again if anybody has looked since the last one; else wait for the next who does not know."""
        self._timer = None
        if self._used and self._link.connected:
            self._begin_sweep()
        else:
            self._schedule()

    # -- learning ------------------------------------------------------------------------------------

    def _learn(self, data: bytes) -> Card | None:
        """Take one answer in; None when it holds no card of ours."""
        instance, text = self._text_of(data)
        if text is None:
            return None
        before = self._instances.get(instance)
        if before is not None and before.text == text:
            before.missed = 0
            return before.card
        try:
            card = Card.model_validate_json(text)
        except ValidationError:
            self.garbage += 1
            return None
        before = self._instances.get(card.instance)
        if before is not None and before.card.generation > card.generation:
            return before.card
        if before is None and len(self._instances) >= MAX_INSTANCES:
            return card
        if any(one.withdrawn for one in card.capabilities):
            taken = tuple(one for one in card.capabilities if not one.withdrawn)
            card = card.model_copy(update={"capabilities": taken})
        self._replace(card, text)
        return card

    def _text_of(self, data: bytes) -> tuple[str, str | None]:
        """Give the instance and the card's text of an answer; services that are not ours have no text."""
        try:
            answer: Any = json.loads(data)
            instance, text = answer["id"], (answer.get("metadata") or {}).get(CARD_KEY)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self.garbage += 1
            return "", None
        if not isinstance(instance, str) or not isinstance(text, str | None):
            self.garbage += 1
            return "", None
        return instance, text

    def _replace(self, card: Card, text: str) -> None:
        before = self._instances.get(card.instance)
        touched = {one.tag for one in card.capabilities}
        if before is not None:
            touched |= {one.tag for one in before.card.capabilities}
            self._unlist(before.card)
        self._instances[card.instance] = _Known(card, text)
        self.changes += 1
        for one in card.capabilities:
            self._by_capability.setdefault(one.tag, {})[card.instance] = card
            self._unknown.pop(one.tag, None)
        self._merge(touched)
        self._changed.set()

    def _unlist(self, card: Card) -> None:
        for one in card.capabilities:
            serving = self._by_capability.get(one.tag, {})
            serving.pop(card.instance, None)
            if not serving:
                self._by_capability.pop(one.tag, None)

    def _forget_missing(self, seen: set[str]) -> None:
        for instance, known in list(self._instances.items()):
            if instance in seen:
                continue
            known.missed += 1
            if known.missed >= _MISSES:
                del self._instances[instance]
                self.changes += 1
                self._unlist(known.card)
                self._merge({one.tag for one in known.card.capabilities})
        if len(self._merged) > MAX_CAPABILITIES:
            for capability in self._merged.keys() - self._by_capability.keys():
                del self._merged[capability]
                self.thrifty.discard(capability)

    def _merge(self, capabilities: Iterable[str]) -> None:
        for capability in capabilities:
            found = [
                one
                for card in self._by_capability.get(capability, {}).values()
                for one in card.capabilities
                if one.tag == capability
            ]
            if found:
                card = self._merged[capability] = merged(found)
                self._note_thrift(capability, card)
            # Where nobody is left, what was known stays: the capability's name and schema are still right.

    def _note_thrift(self, capability: str, card: CapabilityCard | None) -> None:
        if card is not None and card.is_thrifty:
            self.thrifty.add(capability)
        else:
            self.thrifty.discard(capability)

    def _note_unknown(self, capability: str) -> None:
        if len(self._unknown) >= MAX_UNKNOWN:
            self._unknown.clear()
        self._unknown[capability] = self._loop.time()


def merged(found: list[CapabilityCard]) -> CapabilityCard:
    """Say of a capability what is safe for every one of its instances.

    Idempotent, or a read, only if all say so; the longest timeout and the largest payload that any of them takes; a
    schema only where all have the same, so that nothing is refused which one of them would take. An answer is kept, and
    calls are merged, only where all say the same of it; of several rates the tightest holds.
    """
    first = found[0]
    if all(one is first or one == first for one in found):
        return first
    slowest = max(found, key=lambda one: _UNSAID_S if one.timeout_s is None else one.timeout_s)
    schemas = [one.input_schema for one in found]
    return first.model_copy(
        update={
            "idempotent": all(one.idempotent for one in found),
            "timeout_s": slowest.timeout_s,
            "priority": min(one.priority for one in found),
            "max_payload_bytes": max(one.max_payload_bytes for one in found),
            "reads": all(one.reads for one in found),
            "dedupe": all(one.dedupe for one in found),
            "task": any(one.task for one in found),
            "cache": first.cache if all(one.cache == first.cache for one in found) else None,
            "batch": first.batch if all(one.batch == first.batch for one in found) else None,
            "rate": min((one.rate for one in found if one.rate is not None), key=_tightness, default=None),
            "limits": next((one.limits for one in found if one.limits is not None), None),
            "input_schema": schemas[0] if all(each == schemas[0] for each in schemas) else None,
            "output_schema": first.output_schema
            if all(one.output_schema == first.output_schema for one in found)
            else None,
        }
    )


def _tightness(rate: Rate) -> tuple[float, float]:
    return (
        math.inf if rate.calls is None else rate.calls / rate.per_s,
        math.inf if rate.concurrent is None else rate.concurrent,
    )
