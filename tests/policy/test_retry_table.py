"""The whole decision after a failure, as docs/reference/retries.md tells it: the page is the table of these tests.

Every cell of {code and reason} × {no, maybe, yes} × {neither, idempotent, keyed} × {attempts left, time left, budget
left, stream begun, repeated below} is compared with the code, and none may be missing on the page.
"""

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from reach.faults import FAULTS, Code, Executed, Reason
from reach.policy.retry import Decision, GiveUp, Retry, Unknown, Why, decide
from reach.wire.reply import Failure

PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/retries.md").read_text(encoding="utf-8")
ROW = re.compile(r"\| `([A-Z_0-9]+)`(, flagged)? \| `([A-Z_0-9]+)` \| (.+) \| (.+) \| (.+) \|")
ORDER = re.compile(r"\| (.+) \| (`give_up:\w+`|what the table has) \|")
COLUMNS = (("no", True), ("maybe", True), ("maybe", False))
"""What `executed` is, and whether the call is repeatable; for `no` that does not matter."""

CALLS = {"neither": (False, False), "idempotent": (True, False), "keyed": (False, True)}
CONDITIONS = ("stream_began", "inner_retried", "attempts", "retry_budget", "time")
"""What may stand against another attempt; each is the second word of its decision."""


@dataclass(frozen=True)
class Line:
    """One row of the page: the words of its three cells, and which of them are in bold."""

    cells: tuple[str, ...]
    usual: tuple[bool, ...]


def lines() -> dict[tuple[Code, Reason, bool], Line]:
    """The rows by code, reason and whether the far end flagged its failure."""
    found = {}
    for reason, flagged, code, *cells in ROW.findall(PAGE):
        key = (Code(code), Reason(reason), bool(flagged))
        assert key not in found, f"{reason} of {code} has two rows"
        found[key] = Line(
            cells=tuple(cell.strip("*`") for cell in cells),
            usual=tuple(cell.startswith("**") for cell in cells),
        )
    return found


LINES = lines()
STEPS = [then.strip("`").removeprefix("give_up:") for _, then in ORDER.findall(PAGE)]


def on_the_page(code: Code, reason: Reason, executed: Executed, call: str, *, flagged: bool) -> str:
    """The word in the table, before anything else is asked."""
    line = LINES.get((code, reason, flagged)) or LINES[code, reason, False]
    repeatable = executed is Executed.NO or any(CALLS[call])
    return line.cells[COLUMNS.index((executed.value, repeatable))]


def expected(
    code: Code, reason: Reason, executed: Executed, call: str, *, flagged: bool, against: set[str]
) -> str:
    """The word of the first step on the page that holds."""
    for step in STEPS:
        if step == "executed" and executed is Executed.YES:
            return "give_up:executed"
        if step == "caller_left" and reason is Reason.CANCELLED:
            return "give_up:caller_left"
        if step == "what the table has":
            word = on_the_page(code, reason, executed, call, flagged=flagged)
            if not word.startswith("retry"):
                return word
        if step in against:
            return f"give_up:{step}"
    return on_the_page(code, reason, executed, call, flagged=flagged)


def decided(
    code: Code, reason: Reason, executed: Executed, call: str, *, flagged: bool, against: set[str]
) -> Decision:
    """What the code says."""
    idempotent, keyed = CALLS[call]
    return decide(
        Failure.of(reason, code=code, executed=executed),
        idempotent=idempotent,
        keyed=keyed,
        attempt=2 if "attempts" in against else 1,
        left_s=0.015 if "time" in against else 10.0,
        streaming_started="stream_began" in against,
        budget_ok="retry_budget" not in against,
        jitter=0.5,
        inner_retried="inner_retried" in against,
        flagged=flagged,
    )


@pytest.mark.parametrize(("code", "reason"), FAULTS, ids=lambda word: word.value)
def test_every_cell_is_as_the_page_says(code: Code, reason: Reason) -> None:
    """RETRY-1 to RETRY-4, RETRY-6, RETRY-7: each of the cells of a reason is decided as the page tells it."""
    subsets = itertools.chain.from_iterable(itertools.combinations(CONDITIONS, n) for n in range(6))
    wrong = []
    for against, executed, call, flagged in itertools.product(subsets, Executed, CALLS, (False, True)):
        facts = (code, reason, executed, call)
        told = expected(*facts, flagged=flagged, against=set(against))
        word = decided(*facts, flagged=flagged, against=set(against)).word
        if told != word:
            wrong.append((executed.value, call, flagged, against, told, word))
    assert [] == wrong


def test_no_cell_is_missing() -> None:
    """RETRY-1: the page has one row for each code and reason, one more where a flag matters, and no other."""
    flagged = (Code.UPSTREAM_5XX, Reason.REMOTE_5XX, True)
    assert {(code, reason, False) for code, reason in FAULTS} | {flagged} == set(LINES)


def test_the_page_has_every_word() -> None:
    """SEE-3: each way to give up is on the page, and every cell holds a word that the record may hold."""
    words = {word for line in LINES.values() for word in line.cells} | {f"give_up:{step}" for step in STEPS}
    known = {
        *(f"give_up:{why}" for why in Why),
        *(Retry(0.0, elsewhere=elsewhere).word for elsewhere in (False, True)),
    }
    told = {word for word in words if not word.startswith("unknown:")} - {"give_up:what the table has"}
    assert known == told


def test_an_unknown_outcome_names_its_own_reason() -> None:
    """RETRY-2: the cause of `OUTCOME_UNKNOWN` is the reason of the row."""
    assert [] == [
        (reason, word)
        for (_, reason, _), line in LINES.items()
        for word in line.cells
        if word.startswith("unknown:") and word != f"unknown:{reason}"
    ]


def test_the_usual_cells_are_those_of_the_table_of_failures() -> None:
    """ERR-1: what is in bold is what reach/faults.py says is normally known about execution."""
    usual = {"no": (True, False, False), "maybe": (False, True, True), "yes": (False, False, False)}
    assert [] == [
        (code, reason)
        for (code, reason, _), line in LINES.items()
        if usual[FAULTS[code, reason].executed.value] != line.usual
    ]


def test_what_was_done_is_never_repeated() -> None:
    """RETRY-1: no cell under `yes` is anything but giving up."""
    assert {GiveUp(Why.EXECUTED)} == {
        decided(code, reason, Executed.YES, call, flagged=flagged, against=set())
        for code, reason in FAULTS
        for call in CALLS
        for flagged in (False, True)
    }


def test_nothing_unsafe_is_repeated() -> None:
    """RETRY-1, RETRY-2: under `maybe`, a call that is neither idempotent nor keyed is repeated in no cell."""
    assert {GiveUp, Unknown} == {
        type(decided(code, reason, Executed.MAYBE, "neither", flagged=flagged, against=set()))
        for code, reason in FAULTS
        for flagged in (False, True)
    }
