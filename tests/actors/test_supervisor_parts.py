"""The supervisor's smaller parts without a bus: doubts, writes, secrets, alarms."""

from pathlib import Path

import pytest

from actors.supervisor.alarms import EACH_S, Alarms
from actors.supervisor.boottime import boottime
from actors.supervisor.doubt import (
    ABSENT_S,
    ASK_EACH_S,
    FENCE_AFTER_S,
    STEER_AFTER_S,
    TRUST_S,
    Deed,
    Doubts,
    State,
)
from actors.supervisor.scribe import MOST_UNDER_WAY, PATIENCE_S, Scribe
from actors.supervisor.seal import Seal
from reach.bus.keys import Role
from reach.bus.settings import Credentials, Settings
from reach.errors import ConfigError


def deeds(doubts: Doubts, now: float, instance: str = "a") -> list[Deed]:
    return [deed for deed, name in doubts.due(now) if name == instance]


def test_a_silent_instance_is_asked_steered_around_and_fenced() -> None:
    """LIFE-4: pinged at once and each quarter second, steered around after 1 s of silence, fenced after 10."""
    doubts = Doubts()
    assert ["a"] == doubts.suspect(["a"], 100.0)
    assert [] == deeds(doubts, 100.1)
    assert [Deed.PING] == deeds(doubts, 100.0 + ASK_EACH_S)
    assert [Deed.STEER, Deed.PING] == deeds(doubts, 100.0 + STEER_AFTER_S)
    assert State.STEERED is doubts.state("a")
    assert [Deed.FENCE, Deed.PING] == deeds(doubts, 100.0 + FENCE_AFTER_S)
    assert State.FENCED is doubts.state("a")


def test_who_is_still_silent_is_fenced_again() -> None:
    """A kick that came to nothing is repeated each ten seconds."""
    doubts = Doubts()
    doubts.suspect(["a"], 0.0)
    doubts.due(FENCE_AFTER_S)
    assert Deed.FENCE not in deeds(doubts, FENCE_AFTER_S + 1)
    assert Deed.FENCE in deeds(doubts, 2 * FENCE_AFTER_S)


def test_an_answer_ends_the_doubt() -> None:
    """A pong clears an instance, and says how far it had gone."""
    doubts = Doubts()
    doubts.suspect(["a"], 0.0)
    doubts.due(STEER_AFTER_S)
    assert State.STEERED is doubts.alive("a", 1.2)
    assert (None, []) == (doubts.state("a"), doubts.due(20.0))


def test_who_has_just_answered_is_asked_a_moment_later() -> None:
    """A suspicion right after an answer is not forgotten: the question comes when the answer is no longer fresh."""
    doubts = Doubts()
    doubts.alive("a", 0.0)
    assert [] == doubts.suspect(["a"], 0.1)
    assert [] == deeds(doubts, 0.2)
    assert [Deed.PING] == deeds(doubts, TRUST_S)
    assert [Deed.STEER, Deed.PING] == deeds(doubts, TRUST_S + STEER_AFTER_S)


def test_suspicions_do_not_add_up() -> None:
    """An instance that is being asked is not asked again, however many callers complain."""
    doubts = Doubts()
    doubts.suspect(["a"], 0.0)
    assert [] == doubts.suspect(["a", "a"], 0.1)


def test_nobody_listening_for_a_while_is_absence() -> None:
    """No responders to pings for half a second: the instance has no link, as the sentinel would find."""
    doubts = Doubts()
    doubts.suspect(["a"], 0.0)
    assert not doubts.absent("a", ABSENT_S / 2)
    assert doubts.absent("a", ABSENT_S)
    assert not doubts.absent("b", ABSENT_S)


def test_an_adopted_doubt_goes_on() -> None:
    """A new leader goes on steering around whom the table steers around, and asks at once."""
    doubts = Doubts()
    doubts.adopt("a", 50.0)
    assert State.STEERED is doubts.state("a")
    assert [Deed.PING] == deeds(doubts, 50.0)


def test_the_newest_value_of_a_key_is_written_once() -> None:
    """Ten changes while a write is under way are one more write, and a key has one write at a time."""
    scribe = Scribe()
    scribe.put("b", "k", b"0")
    (first,) = scribe.take(0.0)
    for number in range(10):
        scribe.put("b", "k", str(number).encode())
    assert [] == scribe.take(0.0)
    scribe.done(first.number)
    (second,) = scribe.take(0.0)
    assert (b"0", b"9") == (first.data, second.data)
    scribe.done(second.number)
    assert scribe.idle


def test_a_refused_write_is_due_again_unless_a_newer_one_waits() -> None:
    """What was not stored is written again; what has been overtaken is not."""
    scribe = Scribe()
    scribe.put("b", "k", b"old")
    (write,) = scribe.take(0.0)
    scribe.again(write.number)
    (again,) = scribe.take(0.0)
    assert b"old" == again.data
    scribe.put("b", "k", b"new")
    scribe.again(again.number)
    assert [b"new"] == [write.data for write in scribe.take(0.0)]


def test_answers_that_do_not_come_are_not_waited_for_for_ever() -> None:
    """A write without an answer is due again after two seconds; its late answer then counts for nothing."""
    scribe = Scribe()
    scribe.put("b", "k", b"x")
    (write,) = scribe.take(0.0)
    assert (0, 1) == (scribe.late(PATIENCE_S - 0.1), scribe.late(PATIENCE_S))
    (again,) = scribe.take(PATIENCE_S)
    scribe.done(write.number)
    assert not scribe.idle
    scribe.done(again.number)
    assert scribe.idle


def test_writes_under_way_are_bounded() -> None:
    """At most so many writes wait for an answer; the others wait here."""
    scribe = Scribe()
    for number in range(MOST_UNDER_WAY + 5):
        scribe.put("b", str(number), b"x")
    assert MOST_UNDER_WAY == len(scribe.take(0.0))
    assert [] == scribe.take(0.0)


def test_a_secret_follows_from_login_instance_and_generation(tmp_path: Path) -> None:
    """Two supervisors with one login know the same secrets; another instance, start or login has another."""
    file = tmp_path / "platform.nk"
    file.write_text("a seed")
    settings = Settings(
        servers=("nats://127.0.0.1",),
        role=Role.PLATFORM,
        source="test",
        credentials=Credentials(nkey_file=file),
    )
    first, second = Seal.of(settings), Seal.of(settings)
    assert first.secret("a", 1) == second.secret("a", 1)
    others = {first.secret("a", 2), first.secret("b", 1), Seal(b"another").secret("a", 1)}
    assert 3 == len(others - {first.secret("a", 1)})
    assert "a seed" not in first.secret("a", 1)


def test_a_login_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """A missing file is named, not guessed around."""
    settings = Settings(
        servers=("nats://127.0.0.1",),
        role=Role.PLATFORM,
        source="test",
        credentials=Credentials(nkey_file=tmp_path / "none"),
    )
    with pytest.raises(ConfigError, match="The platform's login cannot be read"):
        Seal.of(settings)


def test_the_same_matter_is_told_once_in_five_minutes() -> None:
    """SEE-9: seen a hundred times it is one alert, and the next one says how often; another matter is its own."""
    alarms = Alarms()
    told = [
        alarms.raise_one("panic", "x", "", now=float(at), at_ms=at * 1000) for at in range(int(EACH_S) + 1)
    ]
    seen = [alert for alert in told if alert is not None]
    assert [(1, 0), (int(EACH_S) + 1, 0)] == [(alert.count, alert.first_seen) for alert in seen]
    assert alarms.raise_one("panic", "y", "", now=1.0, at_ms=1000) is not None


def test_a_matter_that_was_over_begins_anew() -> None:
    """Unseen for five minutes, the same kind and subject are another matter."""
    alarms = Alarms()
    alarms.raise_one("panic", "x", "", now=0.0, at_ms=0)
    again = alarms.raise_one("panic", "x", "", now=EACH_S, at_ms=300_000)
    assert again is not None
    assert (1, 300_000) == (again.count, again.first_seen)


def test_boot_time_only_grows() -> None:
    """Leases are counted on a clock that is never set."""
    assert boottime() <= boottime()
