"""What all callers count: exact numbers, values by compare-and-set, and the word at once where nobody counts."""

import asyncio
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

import pytest

from reach.bus.counters import Outage, SharedCounts, StoreDownError, token
from reach.bus.jetstream import GuardRefused
from reach.bus.keys import Role
from reach.errors import LinkDown


@pytest.fixture
async def counts(system: Any) -> AsyncIterator[SharedCounts]:
    """What a caller counts with."""
    async with system.connection(Role.CALLER) as connection:
        shared = SharedCounts(connection)
        yield shared
        shared.close()


async def test_a_number_is_exact_however_many_add(counts: SharedCounts) -> None:
    """GUARD-3: each of 200 that add at once learns another sum, up to 200; what is taken off is off."""
    sums = await asyncio.gather(*(counts.add("reach.count.test.a", 1) for _ in range(200)))

    assert list(range(1, 201)) == sorted(sums)
    assert 190 == await counts.add("reach.count.test.a", -10)
    assert 190 == await counts.add("reach.count.test.a", 0)


async def test_a_value_is_written_over_what_was_read_only(counts: SharedCounts) -> None:
    """Two that read the same value: one of them writes, the other is refused and reads again."""
    assert (b"", 0) == await counts.read("test.value")
    first = await counts.write("test.value", b"one", sequence=0, kept_s=60)
    with pytest.raises(GuardRefused):
        await counts.write("test.value", b"two", sequence=0, kept_s=60)

    assert (b"one", first) == await counts.read("test.value")
    assert await counts.write("test.value", b"two", sequence=first, kept_s=60) > first


async def test_a_value_ends_by_itself(counts: SharedCounts) -> None:
    """What nobody writes any more is gone after its time, and may be written anew."""
    await counts.write("test.short", b"one", sequence=0, kept_s=1)
    async with asyncio.timeout(10):
        while (await counts.read("test.short"))[0]:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.05)
    _, sequence = await counts.read("test.short")

    assert await counts.write("test.short", b"two", sequence=sequence, kept_s=60)


async def test_what_is_not_counted_is_said_soon(counts: SharedCounts) -> None:
    """A number that no stream keeps, or that the broker does not let us add to: told within two seconds."""
    began = monotonic()
    with pytest.raises(StoreDownError):
        await counts.add("reach.register", 1)
    with pytest.raises(StoreDownError):
        await counts.add("reach.outcomes.nobody", 1)

    assert monotonic() - began < 4


async def test_an_outage_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """It begins with one warning and ends with one line, however often it is met; meanwhile nobody needs to try."""
    caplog.set_level("INFO", logger="reach.bus")
    outage = Outage("what is tried here")
    for _ in range(3):
        outage.begin(LinkDown())
    assert outage.is_on
    for _ in range(3):
        outage.end()

    assert ["WARNING", "INFO"] == [record.levelname for record in caplog.records]


@pytest.mark.parametrize(
    ("name", "same"), [("close-1", True), ("a b", False), ("a.b", False), ("ß" * 200, False)]
)
def test_what_stands_in_a_subject_is_one_token(name: str, same: bool) -> None:
    """CALL-9: an id that somebody else's program sent us is a digest in a subject, if it could not stand there."""
    assert same == (token(name) == name)
    assert token(name) == token(token(name))
