"""The table of what can go wrong is total: every code, reason, exception and promise of the design is in it."""

import json
from pathlib import Path

import pytest

from reach import errors
from reach.errors import BY_CODE, ReachError
from reach.faults import FAULTS, Advice, Code, Executed, Fault, Reason, Retryable, fault, is_retryable
from reach.wire.schema import faults_table

COMMITTED = Path(__file__).resolve().parents[1] / "schemas" / "faults.json"

# The design's table, row for row: reasons, code, executed, retryable, advice.
PROMISED = """
NO_RESPONDERS CONNECT DNS              | CONN_REFUSED   | no    | no            | try_other
TLS                                    | CONN_REFUSED   | no    | no            | ask_human
DISCONNECTED STALE                     | CONN_REFUSED   | no    | yes           | wait
BREAKER_OPEN                           | CONN_REFUSED   | no    | no            | try_other
INSTANCE_GONE                          | UPSTREAM_5XX   | maybe | if_idempotent | wait
OUTCOME_UNKNOWN WORKER_LOST            | UNKNOWN        | maybe | no            | ask_human
DEADLINE                               | TIMEOUT        | maybe | if_idempotent | wait
FIRST_BYTE                             | TIMEOUT        | maybe | if_idempotent | try_other
IDLE_STREAM                            | TIMEOUT        | maybe | no            | wait
CANCELLED                              | UNKNOWN        | maybe | no            | give_up
OVERLOADED QUOTA_EXCEEDED REMOTE_429   | RATE_LIMITED   | no    | yes           | wait
BUDGET_EXHAUSTED                       | RATE_LIMITED   | no    | no            | give_up
SCHEMA TOO_LARGE KEY_REUSED NOT_FOUND  | SCHEMA_INVALID | no    | no            | fix_params
REMOTE_4XX NOT_FOUND                   | UPSTREAM_4XX   | yes   | no            | fix_params
AUTH_DENIED FORBIDDEN                  | UPSTREAM_4XX   | no    | no            | ask_human
IN_PROGRESS                            | UPSTREAM_4XX   | maybe | yes           | wait
REMOTE_5XX                             | UPSTREAM_5XX   | maybe | if_flagged    | wait
NON_JSON_BODY STREAM_CUT               | UPSTREAM_5XX   | maybe | no            | wait
HANDLER_ERROR BAD_RESULT               | UPSTREAM_5XX   | yes   | no            | ask_human
UNMAPPED                               | UNKNOWN        | maybe | no            | try_other
"""


def promised() -> dict[tuple[str, str], tuple[str, str, str]]:
    rows = {}
    for line in PROMISED.strip().splitlines():
        reasons, code, *rest = (part.strip() for part in line.split("|"))
        for reason in reasons.split():
            rows[(code, reason)] = (rest[0], rest[1], rest[2])
    return rows


def test_the_table_is_the_one_that_the_design_promises() -> None:
    """ERR-1: each promised row is there with what is known, whether to repeat, and the advice; no other is."""
    ours = {
        (row.code.value, row.reason.value): (row.executed.value, row.retryable.value, row.advice.value)
        for row in FAULTS.values()
    }
    assert promised() == ours


def test_every_code_has_one_exception_and_every_exception_one_code() -> None:
    """ERR-1: codes and exceptions are total both ways."""
    assert set(Code) == BY_CODE.keys()
    assert {code: cls.code for code, cls in BY_CODE.items()} == {code: code for code in Code}
    assert set(ReachError.__subclasses__()) == set(BY_CODE.values())
    assert set(BY_CODE.values()) <= {getattr(errors, cls.__name__) for cls in BY_CODE.values()}


def test_every_word_is_used() -> None:
    """ERR-1: each code, reason, state of execution, advice and way to retry stands in at least one row."""
    rows = FAULTS.values()
    assert set(Code) == {row.code for row in rows}
    assert set(Reason) == {row.reason for row in rows}
    assert set(Executed) == {row.executed for row in rows}
    assert set(Advice) == {row.advice for row in rows}
    assert set(Retryable) == {row.retryable for row in rows}


@pytest.mark.parametrize("row", FAULTS.values(), ids=lambda row: f"{row.code}-{row.reason}")
def test_every_row_has_a_sentence_in_both_languages(row: Fault) -> None:
    """ERR-4: each failure is told in English and in Chinese, in one or a few whole sentences."""
    assert row.en == row.message() == row.message("fr") == row.message("en-GB")
    assert row.zh == row.message("zh") == row.message("zh-CN")
    assert row.en.endswith(".")
    assert row.zh.endswith("。")
    assert any("\u4e00" <= character <= "\u9fff" for character in row.zh)


@pytest.mark.parametrize("row", FAULTS.values(), ids=lambda row: f"{row.code}-{row.reason}")
def test_every_row_is_an_exception_with_its_defaults(row: Fault) -> None:
    """ERR-1: raising a reason of a code gives what the table says of it."""
    error = BY_CODE[row.code](reason=row.reason)
    assert (row.en, row.executed, row.advice) == (error.message, error.executed, error.advice)
    assert is_retryable(row, idempotent=False) == error.retryable


@pytest.mark.parametrize("code", Code)
def test_every_exception_has_a_reason_of_its_own_code(code: Code) -> None:
    """An exception raised bare has a default that the table holds."""
    error = BY_CODE[code]()
    assert (code, error.reason) in FAULTS
    assert f"{code}/{error.reason}" in str(error)


def test_a_refused_connection_and_an_unknown_failure_are_told_calmly() -> None:
    """ERR-4: what a model cannot change is told in one calm sentence that asks for no new parameters."""
    calm = (
        "This capability is not available right now. Do not change the parameters; "
        "use another way or tell the user."
    )
    told = {
        row.en for row in FAULTS.values() if row.code is Code.CONN_REFUSED or row.reason is Reason.UNMAPPED
    }
    assert {calm} == told
    assert (
        "It is not known whether this was done. Do not repeat it; check, or ask."
        == fault(Reason.OUTCOME_UNKNOWN).en
    )


def test_a_reason_alone_means_our_capability() -> None:
    """`NOT_FOUND` stands under two codes; without one it is our capability that is not found."""
    assert Code.SCHEMA_INVALID is fault(Reason.NOT_FOUND).code
    assert Code.UPSTREAM_4XX is fault(Reason.NOT_FOUND, Code.UPSTREAM_4XX).code


def test_a_reason_of_another_code_is_refused_with_those_that_would_do() -> None:
    """A pair that the table does not hold is a ValueError that lists the code's reasons."""
    with pytest.raises(ValueError, match="its reasons are DEADLINE, FIRST_BYTE, IDLE_STREAM"):
        fault(Reason.OVERLOADED, Code.TIMEOUT)


@pytest.mark.parametrize(
    ("reason", "idempotent", "flagged", "expected"),
    [
        (Reason.OVERLOADED, False, False, True),
        (Reason.NO_RESPONDERS, True, True, False),
        (Reason.DEADLINE, False, True, False),
        (Reason.DEADLINE, True, False, True),
        (Reason.REMOTE_5XX, True, False, False),
        (Reason.REMOTE_5XX, False, True, False),
        (Reason.REMOTE_5XX, True, True, True),
    ],
)
def test_whether_to_repeat_depends_on_the_call(
    reason: Reason, idempotent: bool, flagged: bool, expected: bool
) -> None:
    """The receiver may repeat what is idempotent, and a 5xx only where the far end said so too."""
    assert expected == is_retryable(fault(reason), idempotent=idempotent, flagged=flagged)


def test_what_was_executed_is_never_to_be_repeated() -> None:
    """RETRY-1: no row tells a receiver to repeat what is known to have happened."""
    done = [row for row in FAULTS.values() if row.executed is Executed.YES]
    assert {Retryable.NO} == {row.retryable for row in done}


def test_the_published_table_is_this_one() -> None:
    """`schemas/faults.json` holds every row, in both languages."""
    assert {"faults": faults_table()} == json.loads(COMMITTED.read_bytes())
    assert len(FAULTS) == len(faults_table())
