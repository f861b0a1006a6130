"""What time it is at the broker."""

import json
import time
from datetime import UTC, datetime, timedelta

import pytest

from reach.bus import brokertime
from reach.bus.brokertime import BrokerTime


def answer(ahead_s: float) -> bytes:
    """What a server says whose clock is ahead of ours."""
    there = datetime.now(UTC) + timedelta(seconds=ahead_s)
    return json.dumps({"server": {"time": there.isoformat().replace("+00:00", "123Z")}}).encode()


@pytest.mark.parametrize("ahead_s", [0, 3600, -90])
def test_the_offset_is_the_difference_of_the_clocks(ahead_s: float) -> None:
    """CALL-2: expires_at is counted in the broker's time, whatever our own clock says."""
    clock = BrokerTime()
    clock.asked()
    assert clock.answered(answer(ahead_s))
    # The round trip here is microseconds; 100 ms allow for a busy machine.
    assert abs(clock.offset_ms - ahead_s * 1000) < 100
    assert abs(clock.now_ms() - (time.time() + ahead_s) * 1000) < 200


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"server": 1}', b'{"server": {"time": "yesterday"}}'])
def test_an_answer_that_says_nothing_changes_nothing(data: bytes) -> None:
    """A broker that does not tell leaves the offset as it was."""
    clock = BrokerTime()
    clock.offset_ms = 7
    clock.asked()
    assert not clock.answered(data)
    assert clock.offset_ms == 7


async def test_a_connection_learns_it_from_the_server(system, until) -> None:
    """CALL-2: every connection asks its server for the time."""
    async with system.connection() as caller:
        await until(lambda: caller.broker_time.known)
        assert abs(caller.broker_time.offset_ms) < 1000


class Asked:
    """Stands for a link: counts how often the time was asked for."""

    is_up = True

    def __init__(self) -> None:
        self.asked = 0

    def listen(self, *_: object) -> int:
        """Note nothing."""
        return 1

    def send(self, *_: object) -> None:
        """Count."""
        self.asked += 1


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0, 0.5])
def test_a_clock_that_is_set_is_noticed(monkeypatch: pytest.MonkeyPatch, jump_s: float) -> None:
    """CALL-2: after a step of our wall clock the broker is asked again, once, though the link is the old one."""
    clock, link = BrokerTime(), Asked()
    clock.ask(link, "reply.me.t")
    later_s = 10.0
    monkeypatch.setattr(brokertime, "monotonic", lambda: time.monotonic() + later_s)
    wall = time.time
    monkeypatch.setattr(brokertime.time, "time", lambda: wall() + later_s)
    for _ in range(3):
        clock.now_ms()
    assert link.asked == 1
    monkeypatch.setattr(brokertime.time, "time", lambda: wall() + later_s + jump_s)
    for _ in range(3):
        clock.now_ms()
    assert link.asked == 2


def test_doubts_ask_at_most_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of stale calls is no flood of questions."""
    clock, link = BrokerTime(), Asked()
    clock.ask(link, "reply.me.t")
    for _ in range(100):
        clock.doubt()
    assert link.asked == 1
    monkeypatch.setattr(brokertime, "monotonic", lambda: time.monotonic() + 1.5)
    for _ in range(100):
        clock.doubt()
    assert link.asked == 2
