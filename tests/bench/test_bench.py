"""The benchmark and the soak as programs, with loads far too small to measure anything: their shape, no times."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

Ran = subprocess.CompletedProcess[str]

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, folder: Path, timeout_s: float = 100) -> tuple[dict[str, Any], Ran]:
    """Run a module of the benchmark whose temporary files go to `folder`; give its JSON."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments, "--json"],
        check=False,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done


def test_bare_and_governed_calls_are_measured_in_turns(tmp_path: Path) -> None:
    """SPEED-1: both sides at each load, every reply right, breakers, records and suspicion on, nothing left behind."""
    loads = ("--quick", "--skip-startup", "--skip-tasks", "--seconds", "0.1", "--concurrency", "1,8")

    found, done = run("bench", "--only", "nats,reach", *loads, folder=tmp_path)

    assert (0, []) == (done.returncode, found["failures"]), done.stderr
    assert [("nats", 1), ("reach", 1), ("nats", 8), ("reach", 8)] == [
        (line["contender"], line["concurrency"]) for line in found["lines"]
    ]
    assert all(line["made"] > 0 and line["failed"] == 0 and line["ratio"] > 0 for line in found["lines"])
    assert {"nats-py", "agent-reach", "nats-server", "python", "uvloop"} <= found["versions"].keys()
    assert {"breakers": True, "records": True, "suspicion": True} == {
        proof["name"]: proof["on"] for proof in found["proofs"]
    }
    assert [] == list(tmp_path.iterdir())


def test_what_cannot_be_had_is_said(tmp_path: Path) -> None:
    """A contender that is not there is left out with the reason, and an unknown one is refused by name."""
    refused = subprocess.run(
        [sys.executable, "-m", "bench", "--only", "nats,gopher"],
        check=False,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert 2 == refused.returncode
    assert "'gopher' is not one of nats, reach, faststream, moleculer" in refused.stderr


def test_every_way_to_end_a_call_leaves_nothing_behind(tmp_path: Path) -> None:
    """SPEED-5 in small: streams left early, timeouts, cancellations and failures leave no call, request or task."""
    soaked, done = run("bench.soak", "--seconds", "2", folder=tmp_path)

    assert {"echo", "stream", "timeout", "cancel", "fail", "nobody", "large"} == soaked["ends"].keys(), (
        done.stderr
    )
    assert {} == soaked["wrong"]
    assert {0} == set(soaked["waiting"].values()), soaked["waiting"]
    assert [] == list(tmp_path.iterdir())


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_memory_stays_flat_for_ten_minutes(tmp_path: Path) -> None:
    """SPEED-5: ten minutes of every kind of call, at least 10 000 abandoned streams and 10 000 timeouts among them."""
    soaked, _ = run("bench.soak", "--seconds", "600", folder=tmp_path, timeout_s=800)

    assert [] == soaked["faults"]
    assert min(soaked["ends"]["stream"], soaked["ends"]["timeout"]) >= 10_000


def test_tasks_are_measured_beside_bare_publishes(tmp_path: Path) -> None:
    """Issue 7: submitting and round trips at each load, as shares of bare publishes with acknowledgement."""
    code = (
        "import json; from dataclasses import asdict; from bench.tasks import measure_tasks;"
        "print(json.dumps([asdict(line) for line in measure_tasks(seconds=0.1, rounds=1)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert 0 == done.returncode, done.stderr
    found = json.loads(done.stdout)
    assert {64, 256} == {line["concurrency"] for line in found}
    assert {"JetStream publish, acknowledged", "Reach submit", "Reach submit → completed"} <= {
        line["way"] for line in found
    }
    assert all(line["rate"] > 0 and line["ratio"] > 0 for line in found)
    assert [] == list(tmp_path.iterdir())
