"""The access log (SEE-1): failures always, successes sampled, never in a call's way."""

import io
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from reach.observe.logs import ACCESS, AccessLog, access_line, hide_access, show_access
from reach.wire.record import Attempt, Outcome, ReachRecord

ROOT = Path(__file__).resolve().parents[2]
FIELDS = [
    "at",
    "trace_id",
    "reach_id",
    "capability",
    "provider",
    "instance",
    "attempt",
    "ok",
    "error_code",
    "reason",
    "latency_ms",
    "degrade_level",
    "caller",
    "tenant",
]


def record(outcome: Outcome = "ok", reach_id: str = "rch_a") -> ReachRecord:
    return ReachRecord(
        reach_id=reach_id,
        at=1,
        capability="invoice.extract",
        outcome=outcome,
        code=None if outcome == "ok" else "TIMEOUT",
        attempts=[Attempt(n=n, subject="cap.invoice.extract") for n in (1, 2)],
    )


def test_a_line_has_the_promised_fields() -> None:
    """SEE-1: the fields of an access line, in their order, and one line of JSON."""
    line = access_line(record("failed"))
    body = json.loads(line)
    assert FIELDS == list(body)
    assert (2, False, "TIMEOUT") == (body["attempt"], body["ok"], body["error_code"])
    assert "\n" not in line


def test_failures_are_always_written_as_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """SEE-1: every failed or cancelled call is in the log."""
    log = AccessLog(success_sample=0.0)
    with caplog.at_level(logging.INFO, logger=ACCESS):
        for outcome in ("failed", "ok", "cancelled"):
            log.write(record(outcome))
        log.close()
    assert [logging.WARNING] * 2 == [entry.levelno for entry in caplog.records]


def test_successes_are_a_sample_that_may_change(caplog: pytest.LogCaptureFixture) -> None:
    """SEE-1: one in a hundred by default, and whatever is asked for while running."""
    log = AccessLog()
    with caplog.at_level(logging.INFO, logger=ACCESS):
        for _ in range(1_000):
            log.write(record())
        log.flush()
        assert 10 == len(caplog.messages)
        log.success_sample = 1.0
        for _ in range(5):
            log.write(record())
        log.success_sample = 0.0
        log.write(record())
        log.close()
    assert 15 == len(caplog.messages)


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_the_sample_is_a_share(share: float) -> None:
    """A share outside 0 to 1 is refused in words."""
    with pytest.raises(ValueError, match="a number from 0 to 1"):
        AccessLog(success_sample=share)


def test_nobody_who_listens_costs_nothing() -> None:
    """SEE-7: with the logger's level above INFO, successes are not even queued."""
    log = AccessLog(success_sample=1.0)
    logger = logging.getLogger(ACCESS)
    logger.setLevel(logging.WARNING)
    try:
        assert (False, True) == (log.wants(ok=True), log.wants(ok=False))
    finally:
        logger.setLevel(logging.NOTSET)


def test_a_library_prints_nothing_unasked() -> None:
    """A program that configured no logging sees nothing on its terminal, failures included."""
    program = (
        "from reach.observe.logs import AccessLog\n"
        "from reach.wire.record import ReachRecord\n"
        "log = AccessLog()\n"
        "log.write(ReachRecord(reach_id='rch_a', at=1, capability='x', outcome='failed'))\n"
        "log.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, cwd=ROOT, check=True
    )
    assert ("", "") == (done.stdout, done.stderr)


def test_programs_may_show_bare_lines() -> None:
    """`show_access` prints JSON lines alone, from a level up, until it is taken back."""
    stream = io.StringIO()
    handler = show_access(stream)
    log = AccessLog(success_sample=1.0)
    log.write(record("ok", "rch_1"))
    log.flush()
    hide_access(handler)
    log.write(record("failed", "rch_2"))
    log.close()
    assert ["rch_1"] == [json.loads(line)["reach_id"] for line in stream.getvalue().splitlines()]
