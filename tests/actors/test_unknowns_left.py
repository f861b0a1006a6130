"""What the sweep holds of the idempotency store: what is neither done nor free, no more than there is room for."""

from typing import Any

import pytest

from actors.unknowns import left as module
from actors.unknowns.left import Left
from reach.wire.idempotency import EntryState, IdempotencyEntry

AT = 1_700_000_000_000
DAY_MS = 86_400_000
DONE = {"Nats-TTL": "86400s"}


def running(instance: str = "ledger-a", **more: Any) -> IdempotencyEntry:
    return IdempotencyEntry(
        state=EntryState.RUNNING,
        capability="ledger.post",
        tenant="default",
        instance=instance,
        generation=1,
        digest="d",
        begun_at=AT,
        **more,
    )


@pytest.mark.parametrize("headers", [DONE, {"KV-Operation": "DEL"}, {"Nats-Marker-Reason": "MaxAge"}])
def test_what_ends_is_held_no_more(headers: dict[str, str]) -> None:
    """A key that is done, released or expired; the word of it counts at its place in the stream only."""
    left = Left()
    left.take("a", 7, AT, {})
    left.take("a", 6, AT, headers)
    assert 1 == len(left)
    left.take("a", 8, AT, headers)
    assert 0 == len(left)


def test_only_what_has_stood_for_a_while_is_read() -> None:
    """The oldest first, so many at most, and what was read not again until it is written anew."""
    left = Left()
    for at in range(4):
        left.take(f"k{at}", at + 1, AT + at, {})
    assert ["k0", "k1"] == left.unread(AT + 2, 2)
    left.learn("k0", 1, running())
    assert ["k1", "k2"] == left.unread(AT + 2, 9)
    left.take("k0", 9, AT + 2, {})
    assert ["k1", "k2", "k0"] == left.unread(AT + 2, 9)
    left.drop("k0", 8)
    assert 4 == len(left)
    left.drop("k0", 9)
    assert 3 == len(left)


def test_owners_are_asked_for_in_turn() -> None:
    """Each once whatever it has, those of idempotent calls after a day only, and behind the last one the first."""
    left = Left()
    for at, instance in enumerate(("c", "a", "b", "a")):
        left.take(f"k{at}", at + 1, AT, {})
        left.learn(f"k{at}", at + 1, running(instance))
    left.take("safe", 9, AT, {})
    left.learn("safe", 9, running("d", idempotent=True))
    a, b, c, d = ((name, 1, 30.0) for name in "abcd")

    assert [a, b] == left.owners(AT, after=None, most=2)
    assert [c, a] == left.owners(AT, after=b, most=2)
    assert [a, b, c, d] == left.owners(AT + DAY_MS, after=d, most=9)
    assert ["k1", "k3"] == left.keys_of({a, d}, AT, 9)
    assert ["k1", "k3", "safe"] == left.keys_of({a, d}, AT + DAY_MS, 9)


def test_what_there_was_no_room_for_is_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound nothing is held; when half of it is free the store is read again from there."""
    monkeypatch.setattr(module, "MOST", 4)
    left = Left()
    assert 1 == left.begin()
    for at in range(6):
        left.take(f"k{at}", at + 1, AT, {})
    assert (4, False) == (len(left), left.reads_again)
    for at in range(2):
        left.take(f"k{at}", at + 10, AT, DONE)
    assert left.reads_again
    assert (5, False) == (left.begin(), left.reads_again)
    assert 5 == left.begin()
