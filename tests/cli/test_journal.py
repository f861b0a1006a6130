"""The output of `reach pipe` as its own journal: what a later run reads from what a killed one left."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.cli.exits import Exit, Refusal
from reach.cli.journal import Journal, digest

LINES = [f'{{"n": {n}}}'.encode() for n in range(5)]
ANSWERS = [f'{{"line":{n + 1},"ok":{"false" if n == 1 else "true"},"data":{n}}}' for n in range(5)]


def begun(path: Path, *, sent: int, answered: int) -> None:
    """Leave the files of a run that ended there."""
    journal = Journal.open(path, capability="x")
    for line in LINES[:sent]:
        journal.sending(line)
    for answer in ANSWERS[:answered]:
        journal.write(answer)
    journal.close()


def side(path: Path) -> Path:
    return path.with_name(path.name + ".journal")


def test_fresh_run_knows_nothing(tmp_path: Path) -> None:
    """Where there is no output yet, nothing was answered or sent."""
    journal = Journal.open(tmp_path / "out", capability="x")
    assert (0, 0, ()) == (journal.past.answered, journal.past.failed, journal.past.sent)
    journal.close()


def test_what_was_answered_and_sent_is_known(tmp_path: Path) -> None:
    """Complete lines are counted, failed ones too, and the digests of what was sent are there."""
    begun(tmp_path / "out", sent=4, answered=3)
    journal = Journal.open(tmp_path / "out", capability="x")
    assert (3, 1, tuple(map(digest, LINES[:4]))) == (
        journal.past.answered,
        journal.past.failed,
        journal.past.sent,
    )
    journal.close()


@given(cut=st.integers(min_value=1, max_value=len(ANSWERS[2])))
def test_torn_answer_is_cut_off(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    """Wherever a kill cut the last line, what is complete before it stays, and nothing else."""
    out = tmp_path_factory.mktemp("torn") / "out"
    begun(out, sent=3, answered=3)
    out.write_bytes(out.read_bytes()[:-cut])
    journal = Journal.open(out, capability="x")
    assert 2 == journal.past.answered
    journal.write(ANSWERS[2])
    journal.close()
    assert ANSWERS[:3] == out.read_text().splitlines()


@pytest.mark.parametrize("cut", range(1, 8))
def test_torn_digest_is_cut_off(tmp_path: Path, cut: int) -> None:
    """A digest that is not whole belongs to a line that was not sent yet."""
    out = tmp_path / "out"
    begun(out, sent=3, answered=1)
    side(out).write_bytes(side(out).read_bytes()[:-cut])
    journal = Journal.open(out, capability="x")
    assert 2 == len(journal.past.sent)
    journal.sending(LINES[2])
    journal.close()
    again = Journal.open(out, capability="x")
    assert tuple(map(digest, LINES[:3])) == again.past.sent
    again.close()


def test_torn_beginning_is_a_fresh_run(tmp_path: Path) -> None:
    """Killed while the journal itself was begun: nothing was sent."""
    out = tmp_path / "out"
    begun(out, sent=0, answered=0)
    side(out).write_bytes(side(out).read_bytes()[:5])
    journal = Journal.open(out, capability="x")
    assert () == journal.past.sent
    journal.close()


def test_journal_that_lost_lines_is_refused(tmp_path: Path) -> None:
    """More answers than lines that were sent cannot be."""
    out = tmp_path / "out"
    begun(out, sent=1, answered=3)
    with pytest.raises(Refusal) as caught:
        Journal.open(out, capability="x")
    assert (Exit.SETUP, True) == (caught.value.code, "is damaged" in caught.value.message)


def test_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    """An output where nothing can be written is a set-up error that names it."""
    with pytest.raises(Refusal) as caught:
        Journal.open(tmp_path / "no" / "out", capability="x")
    assert f"{tmp_path}/no/out.journal cannot be written: No such file or directory." == caught.value.message
