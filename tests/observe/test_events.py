"""Observers watch; they never take part."""

import logging
from dataclasses import FrozenInstanceError

import pytest

from reach.observe.events import (
    AttemptFinished,
    CallFinished,
    LinkChanged,
    Observer,
    Observers,
    StreamMoved,
    Watcher,
)
from reach.wire.record import Attempt, ReachRecord

RECORD = ReachRecord(reach_id="rch_a", at=1, capability="x", outcome="ok")
EVENTS = {
    "call_finished": CallFinished(record=RECORD),
    "attempt_finished": AttemptFinished(
        reach_id="rch_a", capability="x", attempt=Attempt(n=1, subject="cap.x")
    ),
    "stream_moved": StreamMoved(stream_id="s", capability="x", side="caller", kind="data", seq=1, size=9),
    "link_changed": LinkChanged(state="connected", epoch=1),
}


class Notebook(Watcher):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def call_finished(self, event: CallFinished, /) -> None:
        self.seen.append(event)

    def attempt_finished(self, event: AttemptFinished, /) -> None:
        self.seen.append(event)

    def stream_moved(self, event: StreamMoved, /) -> None:
        self.seen.append(event)

    def link_changed(self, event: LinkChanged, /) -> None:
        self.seen.append(event)


@pytest.mark.parametrize("name", EVENTS)
def test_everybody_is_told(name: str) -> None:
    """Each kind of event reaches each observer, in the order in which they were added."""
    first, second = Notebook(), Notebook()
    observers = Observers(first)
    observers.add(second)
    getattr(observers, name)(EVENTS[name])
    assert [[EVENTS[name]]] * 2 == [first.seen, second.seen]


def test_a_watcher_may_care_about_nothing() -> None:
    """`Watcher` is an observer whose methods do nothing."""
    watcher: Observer = Watcher()
    observers = Observers(watcher)
    for name, event in EVENTS.items():
        getattr(observers, name)(event)
    assert observers.faults == 0


def test_nobody_watching_is_false() -> None:
    """The pipeline asks before it makes an event; leaving twice is no mistake."""
    observers, notebook = Observers(), Notebook()
    before = bool(observers)
    observers.add(notebook)
    during = bool(observers)
    observers.remove(notebook)
    observers.remove(notebook)
    assert (False, True, False) == (before, during, bool(observers))


def test_an_observer_that_fails_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """What an observer raises is logged without secrets, counted, and goes no further."""

    class Broken(Watcher):
        def call_finished(self, event: CallFinished, /) -> None:
            raise RuntimeError("password=hunter2")

    notebook = Notebook()
    observers = Observers(Broken(), notebook)
    with caplog.at_level(logging.ERROR, logger="reach.observe"):
        observers.call_finished(EVENTS["call_finished"])  # type: ignore[arg-type]  # by its name
    assert (1, 1) == (observers.faults, len(notebook.seen))
    assert "an observer failed: RuntimeError: password=***" in caplog.text


def test_events_are_frozen() -> None:
    """An observer cannot change what the next one sees."""
    with pytest.raises(FrozenInstanceError):
        EVENTS["link_changed"].epoch = 2  # type: ignore[attr-defined]  # that is the point
