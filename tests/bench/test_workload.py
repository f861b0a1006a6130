"""The workload of agents in small: what is saved, and that nobody is told anything else (GUARD-6)."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.workload import LEAST_SAVED, Outcome, Row, main, rows_of, script, summary
from bench.world import NOTE, ORDER

ROOT = Path(__file__).resolve().parents[2]


def test_a_third_of_the_downstream_calls_need_not_happen(tmp_path: Path) -> None:
    """GUARD-6: cache, coalescing and batching take off 30 % at least, every result is the same, each write is made."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.workload", "--agents", "4", "--tasks", "3", "--json"],
        check=False,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert 0 == done.returncode, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert (0, 0) == (found["different"], found["failed"])
    assert found["saved"] >= LEAST_SAVED
    assert min(found["hits"], found["shared"], found["batched"]) > 0
    rows = {row["capability"]: row for row in found["rows"]}
    assert all(row["asked"] == row["without"] for row in found["rows"] if row["asked"])
    assert 12 == rows[NOTE]["asked"] == rows[NOTE]["without"] == rows[NOTE]["saving"]
    assert [] == list(tmp_path.iterdir())


def test_a_script_follows_from_its_seed() -> None:
    """The same seed plays the same, so that a difference is never chance; another one plays something else."""
    first = script(3, agents=2, tasks=2)
    assert script(3, agents=2, tasks=2) == first
    assert script(4, agents=2, tasks=2) != first
    reads = [name for act in first for task in act for step in task for name, _ in step]
    assert 4 == reads.count(NOTE)
    assert reads.count(ORDER) >= 16


def outcome(*, without: int, saving: int, different: int = 0, failed: int = 0) -> Outcome:
    """Give what a run has shown."""
    rows = [Row("a.b", without, without, saving)]
    return Outcome(1, 1, 1, rows, hits=1, shared=1, batched=1, different=different, failed=failed)


def test_the_promise_is_about_calls_and_results() -> None:
    """GUARD-6: what was saved is worth nothing where a result differs or a call failed."""
    assert [True, False, False, False] == [
        outcome(without=10, saving=7).kept,
        outcome(without=10, saving=8).kept,
        outcome(without=10, saving=1, different=1).kept,
        outcome(without=10, saving=1, failed=1).kept,
    ]
    assert ["a.b", "all"] == [row[0] for row in rows_of(outcome(without=10, saving=7))]
    assert summary(outcome(without=10, saving=7)).startswith(
        "30% fewer downstream calls, all results identical"
    )


def test_what_cannot_be_played_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Loads are bounded; the message says by what."""
    with pytest.raises(SystemExit):
        main(["--agents", "1000"])
    assert "agents and tasks are 1 to 100" in capsys.readouterr().err
