"""Who changed what is kept until it is stored (ROUTE-7)."""

import pytest

from actors.supervisor.audits import AGAIN_S, MOST_TRIES, Audits
from reach.wire.audit import AuditEntry


def entry(what: str = "route.open") -> AuditEntry:
    return AuditEntry(at=1, who="ada", what=what, writer="s", outcome="done")


def test_an_entry_is_sent_until_it_is_stored() -> None:
    """ROUTE-7: at once, again after two seconds without an answer, and no more once it was stored."""
    audits = Audits()
    audits.put(entry())
    audits.put(entry("route.close"))
    assert [(1, "route.open"), (2, "route.close")] == [(n, one.what) for n, one in audits.due(10.0)]
    assert [] == audits.due(10.0 + AGAIN_S / 2)
    audits.stored(1)
    assert [2] == [number for number, _ in audits.due(10.0 + AGAIN_S)]
    audits.stored(2)
    assert 0 == len(audits)


def test_what_cannot_be_stored_is_told_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """ROUTE-7: who changed what is lost nowhere without a word."""
    audits = Audits()
    audits.put(entry())
    for number in range(MOST_TRIES):
        assert 1 == len(audits.due(number * AGAIN_S))
    assert [] == audits.due(MOST_TRIES * AGAIN_S)
    assert "route.open" in caplog.text
    assert 0 == len(audits)
