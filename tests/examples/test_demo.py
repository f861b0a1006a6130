"""The demonstration as its user runs it: a program that starts everything, loses an instance, and leaves nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

Shown = tuple[dict[str, Any], str, Path]

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "examples" / "invoices" / "samples"
DOCUMENTS = 60
LIMIT_S = 100


def environment(folder: Path) -> dict[str, str]:
    """Give an environment in which everything that the demonstration makes lies in `folder`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("REACH_")}
    return {**env, "TMPDIR": str(folder)}


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        [sys.executable, "-m", "examples.demo", *arguments],
        check=False,
        cwd=ROOT,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def processes_of(folder: Path) -> list[str]:
    """Give the command lines of processes that still work for a folder (Linux; elsewhere none are found)."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command, environ = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
        except OSError:
            continue
        if bytes(folder) in command or bytes(folder) in environ:
            found.append(command.replace(b"\0", b" ").decode("utf-8", "replace"))
    return found


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """One run over the samples: what it told programs, what it told people, and where it ran."""
    folder = tmp_path_factory.mktemp("demo")
    done = run("--documents", str(DOCUMENTS), "--json", folder=folder)
    assert 0 == done.returncode, done.stderr
    return json.loads(done.stdout), done.stderr, folder


def test_every_undamaged_document_is_read_as_known(shown: Shown) -> None:
    """Number, supplier and total of each sample, each time, whoever died meanwhile; nothing from a cache."""
    told, _, _ = shown
    known = json.loads((SAMPLES / "expected.json").read_text("utf-8"))
    whole = [document for document in told["documents"] if "problem" not in known[document["file"]]]

    assert DOCUMENTS == len(told["documents"])
    assert known.keys() == {document["file"] for document in told["documents"]}
    for document in whole:
        expected = known[document["file"]]
        assert (True, False) == (document["ok"], document["cached"])
        assert [expected["number"], expected["supplier"], expected["total"], expected["currency"]] == [
            document[field] for field in ("number", "supplier", "total", "currency")
        ]


def test_the_damaged_file_fails_in_structure(shown: Shown) -> None:
    """Code, reason and advice of the file that breaks off, and a message that says what would be right."""
    told, printed, _ = shown
    damaged = [
        document["error"] for document in told["documents"] if document["file"] == "damaged_truncated.pdf"
    ]

    assert len(damaged) >= 2
    assert {("SCHEMA_INVALID", "SCHEMA", "fix_params")} == {
        (error["code"], error["reason"], error["advice"]) for error in damaged
    }
    assert "damaged_truncated.pdf could not be read" in printed
    assert "pdf_truncated" in printed


def test_calls_of_the_killed_instance_are_answered_by_others(shown: Shown) -> None:
    """Killed with -9 holding at least three calls; each of them ended on its second attempt, elsewhere."""
    told, printed, _ = shown
    lost = told["lost"]
    sent_again = [
        document
        for document in told["documents"]
        if document["first_attempt"] and document["first_attempt"]["reason"] == "INSTANCE_GONE"
    ]

    assert min(lost["held"], lost["sent_again"], len(sent_again)) >= 3
    for document in sent_again:
        assert 2 == document["attempt"]
        assert document["instance"] not in {None, lost["instance"]}
    assert 3 == len({document["instance"] for document in told["documents"]} | {lost["instance"]})
    assert f"kill -9 {lost['pid']}" in printed


def test_people_see_a_table_of_each_file(shown: Shown) -> None:
    """File, supplier, total, instance, attempt and latency, one row a sample; and what to try next is not far."""
    _, printed, _ = shown
    known = json.loads((SAMPLES / "expected.json").read_text("utf-8"))
    lines = printed.splitlines()

    for name, facts in known.items():
        row = next(line for line in lines if line.startswith(name))
        assert facts.get("total", "SCHEMA_INVALID") in row, row
        assert " ms" in row
    assert next(line for line in lines if line.startswith("file")).split() == [
        *("file", "supplier", "total", "instance", "attempt", "latency")
    ]


def test_nothing_is_left(shown: Shown) -> None:
    """No process and no file, by its own account and by the system's."""
    told, _, folder = shown

    assert [] == told["left_running"]
    assert [] == processes_of(folder)
    assert [] == list(folder.iterdir())


def test_it_reads_a_users_own_files(tmp_path: Path) -> None:
    """Each file once, its failure among the results, nobody killed; exit code 1 says that one could not be read."""
    own = tmp_path / "my notes.pdf"
    own.write_text("no invoice at all")
    sample = SAMPLES / "ubl_invoice.xml"

    done = run(str(sample), str(own), "--json", folder=tmp_path)

    told = json.loads(done.stdout)
    assert (1, None) == (done.returncode, told["lost"])
    assert [("ubl_invoice.xml", True, "23409.54"), ("my notes.pdf", False, "")] == [
        (document["file"], document["ok"], document["total"]) for document in told["documents"]
    ]
    assert "SCHEMA_INVALID" == told["documents"][1]["error"]["code"]
    assert "neither PDF nor XML" in told["documents"][1]["error"]["message"]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Nothing is started for a command line that cannot work."""
    done = run("nowhere.pdf", folder=tmp_path)

    assert (2, "") == (done.returncode, done.stderr)
    assert "There is no file nowhere.pdf" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demonstration_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C, or SIGTERM, in the middle: everything ends in order, with exit code 130."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "examples.demo", "--documents", "5000"],
        cwd=ROOT,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Sending"):
                break
        process.send_signal(number)
        printed, _ = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()

    assert (130, True) == (process.returncode, "everything that was started has been ended" in printed), (
        printed
    )
    assert [] == list(tmp_path.iterdir())
    assert [] == processes_of(tmp_path)


def test_processes_end_with_a_demonstration_that_is_killed(tmp_path: Path) -> None:
    """Killed with -9 it cannot clean up; the kernel ends what it started."""
    if sys.platform != "linux":
        pytest.skip("only Linux ends a process with its parent")
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "examples.demo", "--documents", "5000"],
        cwd=ROOT,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Sending"):
            break
    process.kill()
    process.wait()
    process.stdout.close()

    until = time.monotonic() + 30
    while (left := processes_of(tmp_path)) and time.monotonic() < until:
        time.sleep(0.1)
    assert [] == left
