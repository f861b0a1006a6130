"""Whether the demonstration showed what it claims; its exit code follows from this."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from examples.demo.reading import HELD_AT_LEAST, Loss, Reading
from reach.faults import Code, Reason

DAMAGED_CODE: Final = Code.SCHEMA_INVALID
DAMAGED_REASON: Final = Reason.SCHEMA

_NAMED: Final = 5
"""Files named in a detail; the table shows the rest."""


@dataclass(frozen=True, slots=True)
class Check:
    """One claim, and whether it held."""

    claim: str
    ok: bool
    detail: str = ""


def ended_by_the_loss(readings: Sequence[Reading], loss: Loss) -> list[Reading]:
    """Give the calls whose first attempt ended with the instance that was killed.

    Those that it had accepted are known to have been there; those that nobody had accepted for a while may have been.
    """
    return [
        reading
        for reading in readings
        if reading.first is not None
        and (reading.first.instance == loss.instance or reading.first.reason == Reason.INSTANCE_GONE)
    ]


def judge_demo(readings: Sequence[Reading], loss: Loss | None, left_running: Sequence[int]) -> list[Check]:
    """Judge a run over the samples."""
    whole = [reading for reading in readings if not reading.document.damaged]
    damaged = [reading for reading in readings if reading.document.damaged]
    wrong = [reading.document.name for reading in whole if not _as_known(reading)]
    unexpected = [reading.document.name for reading in damaged if not _fails_as_it_must(reading)]
    checks = [
        Check(
            f"each of {len(whole)} undamaged documents was read, with the number, supplier and total it has",
            not wrong,
            _some(wrong),
        ),
        Check("no result came from a cache", not any(reading.reply.cached for reading in readings)),
        Check(
            f"the damaged file was refused in structure, {len(damaged)} times of {len(damaged)}",
            bool(damaged) and not unexpected,
            _some(unexpected),
        ),
        _loss_check(readings, loss),
    ]
    return [*checks, nothing_left(left_running)]


def judge_own(readings: Sequence[Reading], left_running: Sequence[int]) -> list[Check]:
    """Judge a run over a user's files."""
    unread = [reading.document.name for reading in readings if not reading.reply.ok]
    told = f"{len(readings) - len(unread)} of {len(readings)} files were read"
    return [
        Check(told, not unread, f"not read: {_some(unread)}" if unread else ""),
        nothing_left(left_running),
    ]


def nothing_left(left_running: Sequence[int]) -> Check:
    """Judge the end."""
    return Check(
        "nothing is left running", not left_running, f"processes {left_running}" if left_running else ""
    )


def _as_known(reading: Reading) -> bool:
    known = reading.document.expected
    found = (reading.number, reading.supplier, reading.total)
    return reading.reply.ok and known is not None and found == (known.number, known.supplier, known.total)


def _fails_as_it_must(reading: Reading) -> bool:
    error, known = reading.reply.error, reading.document.expected
    if error is None or known is None:
        return False
    return (error.code, error.reason) == (DAMAGED_CODE, DAMAGED_REASON) and known.problem in error.message


def _loss_check(readings: Sequence[Reading], loss: Loss | None) -> Check:
    claim = f"an instance was killed while it held at least {HELD_AT_LEAST} calls, and others answered them"
    if loss is None:
        return Check(claim, ok=False, detail="none was killed")
    ended = ended_by_the_loss(readings, loss)
    answered = [
        reading
        for reading in ended
        if reading.reply.attempt > 1
        and reading.reply.instance not in {None, loss.instance}
        and (reading.reply.ok or reading.document.damaged)
    ]
    ok = loss.held >= HELD_AT_LEAST and len(ended) >= HELD_AT_LEAST and len(answered) == len(ended)
    detail = (
        f"it held {loss.held}; {len(ended)} calls were sent again, and {len(answered)} answered by another"
    )
    return Check(claim, ok, detail)


def _some(names: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(names))
    return ", ".join(distinct[:_NAMED]) + (" …" if len(distinct) > _NAMED else "")
