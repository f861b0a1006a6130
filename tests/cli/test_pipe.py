"""`reach pipe` against a real agent: order, bounds, failures, and being killed half-way."""

import json
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from reach.cli.exits import Exit
from tests.cli.terminal import Reach, wait_for_line, wait_until

pytestmark = pytest.mark.usefixtures("shop")


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def jsonl(items: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(item) + "\n" for item in items)


def test_answers_keep_the_order_of_the_lines(at_bus: Reach) -> None:
    """Calls that take longer do not move their line: answer n is that of line n."""
    items = [{"n": n, "seconds": 0.2 if n % 7 == 0 else 0.0} for n in range(60)]
    done = at_bus("pipe", "nap", stdin=jsonl(items))
    answers = lines_of(done.stdout)
    assert 0 == done.returncode
    assert list(range(60)) == [answer["data"] for answer in answers]
    assert list(range(1, 61)) == [answer["line"] for answer in answers]
    assert "60 lines: 60 ok, 0 failed" in done.stderr


def test_blank_lines_are_counted_but_not_called(at_bus: Reach) -> None:
    """`line` is the number in the input, also when there are blank lines."""
    done = at_bus("pipe", "nap", stdin='\n{"n": 1}\n\n  \n{"n": 2}')
    assert [2, 5] == [answer["line"] for answer in lines_of(done.stdout)]


def test_no_input_is_no_output(at_bus: Reach) -> None:
    """An empty input is done at once."""
    done = at_bus("pipe", "nap", stdin="")
    assert (0, "") == (done.returncode, done.stdout)


def test_lines_that_fail_are_lines_of_the_output(at_bus: Reach, tmp_path: Path) -> None:
    """Bad lines and failed calls stand in their place; the exit code is 1; --errors keeps their input."""
    lines = ['{"n": 1}', "oops", '["n"]', '{"n": "x"}', '{"n": 5}']
    done = at_bus("pipe", "nap", "--errors", "failed.jsonl", stdin="\n".join(lines))
    answers = lines_of(done.stdout)
    assert Exit.FAILED == done.returncode
    assert [True, False, False, False, True] == [answer["ok"] for answer in answers]
    assert {"SCHEMA_INVALID"} == {answer["error"]["code"] for answer in answers if not answer["ok"]}
    assert lines[1:4] == (tmp_path / "failed.jsonl").read_text().splitlines()


def test_stop_on_error_begins_no_more(at_bus: Reach) -> None:
    """After the first failure nothing more is sent, and what was sent is answered."""
    items = [{"n": "x" if n == 3 else n, "seconds": 0.1} for n in range(500)]
    done = at_bus("pipe", "nap", "--stop-on-error", "-n", "2", stdin=jsonl(items))
    answers = lines_of(done.stdout)
    assert Exit.FAILED == done.returncode
    assert list(range(1, len(answers) + 1)) == [answer["line"] for answer in answers]
    assert len(answers) < 50
    assert "Stopped at the first failure." in done.stderr


def test_an_agent_that_is_full_is_waited_for(at_bus: Reach) -> None:
    """More calls than an agent takes at once are sent again, not failed: OVERLOADED was not executed."""
    done = at_bus("pipe", "few", "-n", "16", stdin=jsonl({"n": n} for n in range(40)))
    assert 0 == done.returncode, done.stdout
    assert list(range(40)) == [answer["data"] for answer in lines_of(done.stdout)]


def test_nobody_there_fails_every_line_at_once(at_bus: Reach) -> None:
    """Nothing is waited for where nobody serves the capability."""
    done = at_bus("pipe", "nobody.home", stdin=jsonl({"n": n} for n in range(3)), timeout_s=20)
    assert Exit.FAILED == done.returncode
    assert ["NO_RESPONDERS"] * 3 == [answer["error"]["reason"] for answer in lines_of(done.stdout)]


def test_summary_for_programs(at_bus: Reach) -> None:
    """`--json` makes the summary on stderr JSON."""
    done = at_bus("pipe", "nap", "--json", stdin='{"n": 1}\n{}\n')
    summary = json.loads(done.stderr)
    assert (2, 1, 0, False) == tuple(summary[name] for name in ("answered", "failed", "earlier", "stopped"))


def killed_midway(reach: Reach, *arguments: str, out: Path, after: int) -> None:
    """Run `reach pipe … --out` and kill it with -9 when some lines are out."""
    process = reach.start("pipe", *arguments, "--out", str(out), "--quiet")
    try:
        wait_until(lambda: out.exists() and out.read_bytes().count(b"\n") >= after)
    finally:
        process.send_signal(signal.SIGKILL)
        process.finish()
    assert -signal.SIGKILL == process.returncode


def test_killed_and_run_again_each_line_is_there_once(at_bus: Reach, tmp_path: Path) -> None:
    """Killed with -9 midway, twice, and run again: each line once in the output, in order."""
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(jsonl({"n": n} for n in range(400)))
    command = ("nap", "--in", str(source), "-n", "8")
    killed_midway(at_bus, *command, out=out, after=40)
    killed_midway(at_bus, *command, out=out, after=150)
    partly = out.read_bytes().count(b"\n")
    done = at_bus("pipe", *command, "--out", out)
    answers = lines_of(out.read_text())
    assert 0 == done.returncode, done.stderr
    assert 150 <= partly < 400
    assert list(range(400)) == [answer["data"] for answer in answers]
    assert list(range(1, 401)) == [answer["line"] for answer in answers]
    assert "of them earlier" in done.stderr


def test_done_and_run_again_does_nothing(at_bus: Reach, tmp_path: Path) -> None:
    """A run that is complete stays as it is; lines that were added to the input are done."""
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(jsonl({"n": n} for n in range(3)))
    at_bus("pipe", "nap", "--in", source, "--out", out)
    first = out.read_text()
    assert 0 == at_bus("pipe", "nap", "--in", source, "--out", out).returncode
    assert first == out.read_text()
    with source.open("a") as file:
        file.write('{"n": 3}\n')
    at_bus("pipe", "nap", "--in", source, "--out", out)
    assert [0, 1, 2, 3] == [answer["data"] for answer in lines_of(out.read_text())]


def test_write_under_way_when_killed_is_not_done_twice(at_bus: Reach, tmp_path: Path) -> None:
    """A call that may have been executed is not sent again where that is not safe: OUTCOME_UNKNOWN (RETRY-2)."""
    source, out, effects = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "effects"
    source.write_text(jsonl({"n": n, "path": str(effects), "seconds": 0.05} for n in range(200)))
    command = ("write", "--in", str(source), "-n", "4")
    killed_midway(at_bus, *command, out=out, after=20)
    done = at_bus("pipe", *command, "--out", out)
    answers = lines_of(out.read_text())
    written = [int(line) for line in effects.read_text().split()]
    unsure = [answer for answer in answers if not answer["ok"]]
    assert list(range(1, 201)) == [answer["line"] for answer in answers]
    assert len(set(written)) == len(written)
    assert 1 <= len(unsure) <= 16
    assert {("OUTCOME_UNKNOWN", "maybe")} == {
        (one["error"]["reason"], one["error"]["executed"]) for one in unsure
    }
    assert Exit.FAILED == done.returncode
    assert "--repeat-unsure" in done.stderr


def test_write_under_way_is_repeated_when_asked_for(at_bus: Reach, tmp_path: Path) -> None:
    """`--repeat-unsure` sends them again: the person knows better."""
    source, out, effects = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "effects"
    source.write_text(jsonl({"n": n, "path": str(effects), "seconds": 0.05} for n in range(60)))
    command = ("write", "--in", str(source), "-n", "4")
    killed_midway(at_bus, *command, out=out, after=10)
    done = at_bus("pipe", *command, "--out", out, "--repeat-unsure")
    assert 0 == done.returncode, done.stderr
    assert list(range(60)) == [answer["data"] for answer in lines_of(out.read_text())]


def test_another_input_is_refused(at_bus: Reach, tmp_path: Path) -> None:
    """Going on with an input that is not the one begun with would mix two jobs."""
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(jsonl({"n": n} for n in range(3)))
    at_bus("pipe", "nap", "--in", source, "--out", out)
    before = out.read_text()
    source.write_text(jsonl({"n": n} for n in (0, 7, 2)))
    changed = at_bus("pipe", "nap", "--in", source, "--out", out)
    source.write_text(jsonl([{"n": 0}]))
    shorter = at_bus("pipe", "nap", "--in", source, "--out", out)
    assert (Exit.USAGE, Exit.USAGE) == (changed.returncode, shorter.returncode)
    assert "line 2 differs" in changed.stderr
    assert "The input ends after 1 line; the output already has 3." in shorter.stderr
    assert before == out.read_text()


def test_another_capability_is_refused(at_bus: Reach, tmp_path: Path) -> None:
    """An output belongs to the capability that it was begun with."""
    at_bus("pipe", "nap", "--out", "out.jsonl", stdin='{"n": 1}')
    done = at_bus("pipe", "few", "--out", "out.jsonl", stdin='{"n": 1}')
    assert (Exit.USAGE, True) == (done.returncode, "was begun with nap, not few" in done.stderr)


@pytest.mark.parametrize("content", ["precious", "precious\n", '{"a": 1}\n'])
def test_a_file_of_somebody_elses_is_left_alone(at_bus: Reach, tmp_path: Path, content: str) -> None:
    """`--out` never touches a file that it did not begin, unless told to."""
    out = tmp_path / "out.jsonl"
    out.write_text(content)
    refused = at_bus("pipe", "nap", "--out", out, stdin='{"n": 1}')
    assert (Exit.USAGE, content) == (refused.returncode, out.read_text())
    assert "--overwrite" in refused.stderr
    assert 0 == at_bus("pipe", "nap", "--out", out, "--overwrite", stdin='{"n": 1}').returncode
    assert [1] == [answer["data"] for answer in lines_of(out.read_text())]


def test_two_at_once_are_refused(at_bus: Reach, tmp_path: Path) -> None:
    """Two runs do not write to one output."""
    out = tmp_path / "out.jsonl"
    first = at_bus.start("pipe", "nap", "--out", str(out), stdin=subprocess.PIPE)
    try:
        assert first.stdin is not None
        first.stdin.write('{"n": 1}\n')
        first.stdin.flush()
        wait_until(lambda: out.exists() and out.stat().st_size)
        second = at_bus("pipe", "nap", "--out", out, stdin='{"n": 1}')
        assert (Exit.SETUP, True) == (second.returncode, "Another `reach pipe` writes" in second.stderr)
    finally:
        first.finish()


def test_ctrl_c_leaves_no_line_in_doubt(at_bus: Reach, tmp_path: Path) -> None:
    """Lines under way are answered after Ctrl-C, so that going on has none to report as unknown."""
    out = tmp_path / "out.jsonl"
    (tmp_path / "in.jsonl").write_text(jsonl({"n": n, "seconds": 0.3} for n in range(60)))
    command = ("pipe", "nap", "--in", "in.jsonl", "--out", str(out), "-n", "4")
    process = at_bus.start(*command)
    wait_until(lambda: out.exists() and out.read_bytes().count(b"\n") >= 5)
    process.send_signal(signal.SIGINT)
    _, err = process.finish()
    assert Exit.INTERRUPTED == process.returncode
    assert "Waiting for the lines that are under way." in err
    assert "The same command goes on from there." in err
    kept = lines_of(out.read_text())
    assert 5 <= len(kept) < 60
    done = at_bus(*command, "-n", "60")
    assert 0 == done.returncode, done.stderr
    assert list(range(60)) == [answer["data"] for answer in lines_of(out.read_text())]


def test_ctrl_c_before_anything_was_read(at_bus: Reach) -> None:
    """A Ctrl-C while the input is silent ends it at once."""
    process = at_bus.start("pipe", "nap", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write('{"n": 1}\n')
    process.stdin.flush()
    wait_for_line(process, '"ok":true')
    process.send_signal(signal.SIGINT)
    process.finish(timeout_s=20)
    assert Exit.INTERRUPTED == process.returncode


def test_a_second_ctrl_c_does_not_wait_and_says_how_to_go_on(at_bus: Reach, tmp_path: Path) -> None:
    """Ctrl-C ends with 130, keeps what was answered, and says that the same command goes on."""
    out = tmp_path / "out.jsonl"
    slow = [{"n": n, "seconds": 0.1 if n < 8 else 60} for n in range(500)]
    (tmp_path / "in.jsonl").write_text(jsonl(slow))
    process = at_bus.start("pipe", "nap", "--in", "in.jsonl", "--out", str(out), "-n", "4", "-t", "60")
    wait_until(lambda: out.exists() and out.read_bytes().count(b"\n") >= 8)
    process.send_signal(signal.SIGINT)
    wait_until(lambda: "Once more" in process.said())
    process.send_signal(signal.SIGINT)
    _, err = process.finish(timeout_s=20)
    assert Exit.INTERRUPTED == process.returncode
    assert "The same command goes on from there." in err
    assert "Traceback" not in err


def test_reader_that_leaves_is_a_quiet_end(at_bus: Reach) -> None:
    """`reach pipe … | head -1` ends without a traceback, and makes no more calls."""
    (at_bus.cwd / "in.jsonl").write_text(jsonl({"n": n} for n in range(2000)))
    process = at_bus.start("pipe", "nap", "--in", "in.jsonl", "--quiet")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert Exit.PIPE_CLOSED == process.wait(timeout=20)
    assert "" == process.said()
