"""The deadline wheel: many deadlines on one timer."""

import asyncio
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from reach.bus import wheel as wheel_module
from reach.bus.wheel import SLOT_S, DeadlineWheel


class Loop:
    """A loop that only knows its timers, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []

    def call_at(self, when: float, callback: Callable[[], None]) -> "Timer":
        """Note a timer."""
        timer = Timer(when, callback)
        self.timers.append(timer)
        return timer

    @property
    def armed(self) -> int:
        """How many timers are armed."""
        return sum(not timer.cancelled for timer in self.timers)

    def move(self, to: float) -> None:
        """Fire what is due until `to`."""
        while True:
            due = [timer for timer in self.timers if not timer.cancelled and timer.when <= to]
            if not due:
                break
            timer = min(due, key=lambda each: each.when)
            timer.cancelled = True
            self.now = max(self.now, timer.when)
            timer.callback()
        self.now = to


class Timer:
    """What `call_at` gives."""

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """Disarm it."""
        self.cancelled = True


def make(monkeypatch) -> tuple[Loop, DeadlineWheel, list[tuple[str, float]]]:
    """A wheel on a loop and a clock that the test moves."""
    loop = Loop()
    due: list[tuple[str, float]] = []
    monkeypatch.setattr(wheel_module, "monotonic", lambda: loop.now)
    return loop, DeadlineWheel(loop, lambda key: due.append((key, loop.now))), due  # type: ignore[arg-type]


def test_a_key_is_due_within_one_slot_after_its_time(monkeypatch) -> None:
    """A deadline is never judged early, and at most one slot late."""
    loop, wheel, due = make(monkeypatch)
    wheel.add("a", 100.123)
    loop.move(100.122)
    assert due == []
    loop.move(101.0)
    assert [key for key, _ in due] == ["a"]
    assert 100.123 <= due[0][1] <= 100.123 + SLOT_S + 1e-9


def test_a_discarded_key_is_never_due(monkeypatch) -> None:
    """A call that was answered in time costs nothing later."""
    loop, wheel, due = make(monkeypatch)
    slot = wheel.add("a", 100.5)
    wheel.discard("a", slot)
    loop.move(102.0)
    assert (due, len(wheel)) == ([], 0)


def test_there_is_one_timer_however_many_keys(monkeypatch) -> None:
    """A thousand deadlines arm one timer."""
    loop, wheel, _ = make(monkeypatch)
    for number in range(1000):
        wheel.add(str(number), 101.0 + number / 500)
    assert loop.armed == 1


@given(st.lists(st.tuples(st.floats(100.0, 110.0), st.booleans()), max_size=60))
def test_every_key_is_due_once_in_its_slot_unless_discarded(plan: list[tuple[float, bool]]) -> None:
    """For any set of deadlines and discards: each kept key exactly once, in time; no discarded one."""
    loop = Loop()
    due: list[tuple[str, float]] = []
    real = wheel_module.monotonic
    wheel_module.monotonic = lambda: loop.now  # type: ignore[assignment]
    try:
        wheel = DeadlineWheel(loop, lambda key: due.append((key, loop.now)))  # type: ignore[arg-type]
        for number, (when, discard) in enumerate(plan):
            slot = wheel.add(str(number), when)
            if discard:
                wheel.discard(str(number), slot)
        loop.move(111.0)
    finally:
        wheel_module.monotonic = real
    kept = {str(number): when for number, (when, discard) in enumerate(plan) if not discard}
    assert sorted(key for key, _ in due) == sorted(kept)
    assert all(kept[key] <= at <= kept[key] + 2 * SLOT_S for key, at in due)


async def test_it_runs_on_a_real_loop() -> None:
    """On asyncio's own loop a key becomes due, and closing forgets the others."""
    due: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    wheel = DeadlineWheel(loop, due.put_nowait)
    wheel.add("later", loop.time() + 1000)
    wheel.add("soon", loop.time() + 0.001)
    assert await asyncio.wait_for(due.get(), 5) == "soon"
    wheel.close()
    assert len(wheel) == 0
