"""`reach submit`, `reach task …` and `reach pipe --tasks` against a platform and a worker of their own."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reach.cli.exits import Exit
from reach.runtime.platform import READY, platform_command
from tests.cli.terminal import Program, Reach, end, environment, server, wait_for_line, wait_until

CLERK = '''
"""What the tests submit to."""

import asyncio

import reach

agent = reach.Agent("clerk")


@agent.task("desk.sum", idempotent=True, max_concurrency=64)
async def add(n: int, ctx: reach.TaskContext, seconds: float = 0.0) -> int:
    await ctx.progress(0.5, "half way")
    await asyncio.sleep(seconds)
    return n + 1


@agent.task("desk.ask")
async def ask(ctx: reach.TaskContext) -> str:
    return "released" if await ctx.ask("release it?", schema=bool) else "kept"


@agent.task("desk.fail")
async def fail() -> None:
    raise RuntimeError("hunter2")


@agent.task("desk.dies", idempotent=True, max_attempts=1)
async def dies() -> None:
    raise RuntimeError("hunter2")


@agent.task("desk.note", max_concurrency=64)
async def note(n: int, path: str) -> int:
    with open(path, "a") as file:
        file.write(f"{n}\\n")
    await asyncio.sleep(0.2)
    return n
'''


@pytest.fixture(scope="module")
def desk_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """State folder of a server with a platform and a worker."""
    folder = tmp_path_factory.mktemp("desk")
    home = folder / "home"
    (folder / "clerk.py").write_text(CLERK)
    reach = Reach(environment(REACH_HOME=str(home), REACH_RECORDS="off"), folder)
    with server(home):
        command = platform_command(home, watch_stdin=True)
        platform = Program(command, env=reach.env, cwd=folder, stdin=subprocess.PIPE)
        worker = reach.start("run", "clerk:agent", "--json")
        try:
            wait_for_line(platform, READY)
            wait_for_line(worker, "ready")
            yield home
        finally:
            end(worker)
            end(platform)


@pytest.fixture
def desk(desk_home: Path, tmp_path: Path) -> Reach:
    """The command, where they run."""
    return Reach(environment(REACH_HOME=str(desk_home)), tmp_path)


def submitted(desk: Reach, *arguments: str) -> str:
    done = desk("submit", *arguments)
    assert 0 == done.returncode, done.stderr
    return done.stdout.strip()


def listed(desk: Reach, *arguments: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(desk("task", "ls", "--json", *arguments).stdout)["tasks"]
    return rows


def test_submit_prints_the_id_and_watch_the_result(desk: Reach) -> None:
    """Stdout of `submit` is the id alone; `watch`, even afterwards, tells of all events and prints the result."""
    task_id = submitted(desk, "desk.sum", "n:=1")
    watched = desk("task", "watch", task_id)
    assert (0, "2\n") == (watched.returncode, watched.stdout)
    assert ["queued", "running", "progress", "completed"] == [
        line.split()[0] for line in watched.stderr.splitlines()
    ]
    assert "50% half way" in watched.stderr


def test_submit_waits(desk: Reach) -> None:
    """With --wait the result is printed as a call's; with --json each event is a line."""
    assert "3\n" == desk("submit", "desk.sum", "n:=2", "--wait").stdout
    events = desk("submit", "desk.sum", "n:=2", "--wait", "--json").stdout.splitlines()
    assert ("completed", 3) == (json.loads(events[-1])["state"], json.loads(events[-1])["data"])


def test_a_key_submits_once(desk: Reach) -> None:
    """The same key gives the same task, and says so."""
    first = submitted(desk, "desk.sum", "n:=3", "--key", "once")
    again = desk("submit", "desk.sum", "n:=3", "--key", "once")
    assert first == again.stdout.strip()
    assert "before" in again.stderr


def test_what_is_no_time_is_refused(desk: Reach) -> None:
    """A moment without a time zone, or that is none, ends with 2 and with what would be right."""
    for wrong in ("tomorrow", "2035-01-01T10:00:00"):
        done = desk("submit", "desk.sum", "n:=1", "--at", wrong)
        assert Exit.USAGE == done.returncode
        assert "Right would be" in done.stderr


def test_a_task_that_failed_is_told_and_fails(desk: Reach) -> None:
    """`watch` of a failed task ends as a failed call does, and never shows the exception's text."""
    done = desk("task", "watch", submitted(desk, "desk.fail"))
    assert Exit.FAILED == done.returncode
    assert "HANDLER_ERROR" in done.stderr
    assert "hunter2" not in done.stderr + done.stdout


def test_a_question_is_seen_and_answered(desk: Reach) -> None:
    """What waits for a person is listed with its question; an answer that does not fit is refused; then it goes on."""
    task_id = submitted(desk, "desk.ask")
    wait_until(lambda: listed(desk, "--state", "input_required"))
    shown = desk("task", "ls", "--state", "input_required").stdout
    wrong = desk("task", "answer", task_id, "perhaps")
    right = desk("task", "answer", task_id, "true")
    assert "asks: release it?" in shown
    assert (Exit.FAILED, True) == (wrong.returncode, "does not fit" in wrong.stderr)
    assert 0 == right.returncode, right.stderr
    assert "released\n" == desk("task", "watch", task_id).stdout


def test_cancel_ends_what_waits(desk: Reach) -> None:
    """A scheduled task is cancelled at once, shown as that, and cancelling it again changes nothing."""
    task_id = submitted(desk, "desk.sum", "n:=1", "--delay", "1h")
    assert [(0, "cancelled\n")] * 2 == [
        (done.returncode, done.stdout) for done in (desk("task", "cancel", task_id) for _ in range(2))
    ]
    states = [line.split()[2] for line in desk("task", "show", task_id).stdout.splitlines()[1:]]
    assert ["scheduled", "cancelled"] == states


def test_what_died_is_listed_and_tried_again(desk: Reach) -> None:
    """`dead` lists what was given up, and with --retry submits it anew, under its id."""
    task_id = submitted(desk, "desk.dies")
    wait_until(lambda: listed(desk, "desk.dies", "--state", "dead"))
    assert task_id in desk("task", "dead", "desk.*").stdout
    assert f"{task_id}\n" == desk("task", "dead", "desk.*", "--retry").stdout
    wait_until(lambda: [row["run"] for row in listed(desk, "desk.dies", "--state", "dead")] == [2])


def test_a_task_that_there_is_not(desk: Reach) -> None:
    """An unknown id is refused by every command, at once."""
    for command in (("watch",), ("show",), ("cancel",), ("retry",)):
        done = desk("task", *command, "nothing")
        assert done.returncode != 0
        assert "no task nothing" in done.stderr


def test_lists_need_the_platform(at_bus: Reach) -> None:
    """Where no platform runs, lists say so, and who would tell."""
    done = at_bus("task", "ls")
    assert Exit.NO_CONNECTION == done.returncode
    assert "reach up" in done.stderr


def test_secret_is_one_a_tenant(desk: Reach) -> None:
    """The secret of callbacks is printed alone, the same each time, and another for another tenant."""
    mine, again, other = (desk("task", "secret", *more).stdout for more in ((), (), ("--tenant", "other")))
    assert mine.startswith("whsec_")
    assert mine == again != other


def test_pipe_of_tasks_keeps_the_order(desk: Reach) -> None:
    """`pipe --tasks` answers line by line, in order, with each task's id; lines that fail are lines."""
    done = desk(
        "pipe",
        "desk.sum",
        "--tasks",
        stdin='{"n": 1}\n{"n": "x"}\noops\n{"n": 4, "seconds": 0.1}\n{"n": 5}\n',
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert Exit.FAILED == done.returncode
    assert [2, None, None, 5, 6] == [answer.get("data") for answer in answers]
    assert {True} == {"task_id" in answer for answer in answers if answer["ok"]}


def test_pipe_of_tasks_goes_on_after_a_kill(desk: Reach, tmp_path: Path) -> None:
    """Killed half-way and run again, every line is done exactly once, though the capability is not idempotent."""
    seen, out = tmp_path / "seen", tmp_path / "out.jsonl"
    lines = [json.dumps({"n": n, "path": str(seen)}) for n in range(120)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    command = ("pipe", "desk.note", "--tasks", "-n", "16", "--in", "in.jsonl", "--out", "out.jsonl", "-q")
    first = desk.start(*command)
    wait_until(lambda: out.exists() and out.read_text().count("\n") >= 20)
    end(first, number=signal.SIGKILL)
    done = desk(*command)

    assert 0 == done.returncode, done.stderr
    assert list(range(120)) == [json.loads(line)["data"] for line in out.read_text().splitlines()]
    assert list(range(120)) == sorted(map(int, seen.read_text().split()))
