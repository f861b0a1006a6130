"""What observers are told: frozen events, and one way to hand them out.

An observer only watches: it cannot change a call, and what it raises is logged and costs the others nothing.
Events are made only while somebody watches, so that nobody pays for hooks that are not used. Whoever builds
on this (metrics of a vendor, traces, an exporter) implements the methods it cares about in one file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from reach.observe.redaction import safe_cause
from reach.wire.record import Attempt, ReachRecord

_log = logging.getLogger("reach.observe")

Event = TypeVar("Event")
Side = Literal["caller", "agent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFinished:
    """A call ended, in whatever way; exactly one for each call."""

    record: ReachRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFinished:
    """One try of a call ended; `attempt.decision` says what follows."""

    reach_id: str
    capability: str
    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMoved:
    """A data frame passed, or a stream ended. `seq` counts data frames from 1; `size` is in bytes."""

    stream_id: str
    capability: str
    side: Side
    kind: Literal["data", "end", "error"]
    seq: int
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkChanged:
    """The connection to NATS came or went. `epoch` counts links; `cause` says what ended one, redacted."""

    state: Literal["connected", "disconnected", "closed"]
    epoch: int
    cause: str = ""


class Observer(Protocol):
    """Whoever watches. Methods run within the event loop and must be instant; `Watcher` has them all."""

    def call_finished(self, event: CallFinished, /) -> None:
        """Learn that a call ended."""
        ...

    def attempt_finished(self, event: AttemptFinished, /) -> None:
        """Learn that one try of a call ended."""
        ...

    def stream_moved(self, event: StreamMoved, /) -> None:
        """Learn that a stream's frame passed."""
        ...

    def link_changed(self, event: LinkChanged, /) -> None:
        """Learn that the connection came or went."""
        ...


class Watcher:
    """An observer that does nothing: override what you care about."""

    def call_finished(self, event: CallFinished, /) -> None:
        """Ignore it."""

    def attempt_finished(self, event: AttemptFinished, /) -> None:
        """Ignore it."""

    def stream_moved(self, event: StreamMoved, /) -> None:
        """Ignore it."""

    def link_changed(self, event: LinkChanged, /) -> None:
        """Ignore it."""


class Observers:
    """Those who watch. False while there are none: ask that before making an event.

    ::

        if observers:
            observers.call_finished(CallFinished(record=record))
    """

    __slots__ = ("_all", "faults")

    def __init__(self, *observers: Observer) -> None:
        self._all: tuple[Observer, ...] = observers
        self.faults = 0
        """How often an observer raised."""

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, observer: Observer) -> None:
        """Let `observer` watch, too."""
        self._all = (*self._all, observer)

    def remove(self, observer: Observer) -> None:
        """Let `observer` watch no longer; one that does not watch is no mistake."""
        self._all = tuple(other for other in self._all if other is not observer)

    def call_finished(self, event: CallFinished) -> None:
        """Tell everybody that a call ended."""
        for observer in self._all:
            self._tell(observer.call_finished, event)

    def attempt_finished(self, event: AttemptFinished) -> None:
        """Tell everybody that one try of a call ended."""
        for observer in self._all:
            self._tell(observer.attempt_finished, event)

    def stream_moved(self, event: StreamMoved) -> None:
        """Tell everybody that a stream's frame passed."""
        for observer in self._all:
            self._tell(observer.stream_moved, event)

    def link_changed(self, event: LinkChanged) -> None:
        """Tell everybody that the connection came or went."""
        for observer in self._all:
            self._tell(observer.link_changed, event)

    def _tell(self, method: Callable[[Event], None], event: Event) -> None:
        try:
            method(event)
        except Exception as error:  # noqa: BLE001 - a watcher's fault must not become a call's
            self.faults += 1
            _log.error("an observer failed: %s", safe_cause(error))
