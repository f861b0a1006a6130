"""`reach outcomes …` where real agents die in the middle: who is told what, and how often anything is done.

Most commands run in this process (`Here`): a start of Python takes longer than what it starts for.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reach.cli.exits import Exit
from reach.runtime.platform import READY, platform_command
from tests.cli.terminal import Program, Reach, end, environment, server, wait_for_line, wait_until
from tests.cli.test_steer import Here

LEDGER = '''
"""What the tests call: each call is a line in a file, and some calls are their process's last."""

import asyncio
import os
import signal
from pathlib import Path

import reach

agent = reach.Agent("ledger")


def post(n: int, folder: str) -> None:
    with open(f"{folder}/effects", "a") as file:
        file.write(f"{n}\\n")


def crash(folder: str, when: str) -> None:
    """End without a word where a file asks for it, once."""
    order = Path(folder) / f"crash-{when}"
    if order.exists():
        order.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


@agent.capability("ledger.post", timeout_s=20)
async def write(n: int, folder: str) -> dict[str, int]:
    """Write a line."""
    crash(folder, "before")
    post(n, folder)
    crash(folder, "after")
    return {"entry": n}


@agent.task("ledger.close", timeout_s=60, ack_wait_s=2.0)
async def close(n: int, folder: str) -> int:
    post(n, folder)
    crash(folder, "after")
    return n
'''


@dataclass
class Books:
    """A server with a platform, agents that are replaced when they die, and the folder of their effects."""

    reach: Reach
    here: Here
    folder: Path
    agents: list[Program]

    def serve(self, count: int = 2) -> None:
        """See to it that so many agents run."""
        for one in self.agents:
            if one.poll() is not None:
                end(one)
        self.agents = [one for one in self.agents if one.returncode is None]
        fresh = [self.reach.start("run", "ledger:agent", "--json") for _ in range(count - len(self.agents))]
        for one in fresh:
            wait_for_line(one, "ready")
        self.agents += fresh

    @property
    def effects(self) -> list[int]:
        path = self.folder / "effects"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def call(self, n: int, *options: str) -> subprocess.CompletedProcess[str]:
        return self.here("call", "ledger.post", f"n:={n}", f"folder={self.folder}", *options)

    def lost(self, n: int, *options: str, when: str = "after") -> str:
        """Make a call whose agent dies; gives its id."""
        self.serve()
        (self.folder / f"crash-{when}").touch()
        done = self.call(n, *options)
        assert Exit.UNSURE == done.returncode, done.stderr
        (found,) = re.findall(r"next +reach outcomes show (rch_\w+)", done.stderr)
        return str(found)

    def outcomes(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.here("outcomes", *words)

    def listed(self, *words: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.outcomes("ls", "--json", *words).stdout)["rows"]
        return rows

    def wait_listed(self, reach_id: str) -> None:
        wait_until(lambda: self.outcomes("show", reach_id).returncode == 0)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Books]:
    """A server, a platform, and agents."""
    folder = tmp_path_factory.mktemp("ledger")
    home = folder / "home"
    (folder / "ledger.py").write_text(LEDGER)
    reach = Reach(environment(REACH_HOME=str(home), REACH_RECORDS="off"), folder)
    with server(home):
        platform = Program(
            platform_command(home, watch_stdin=True), env=reach.env, cwd=folder, stdin=subprocess.PIPE
        )
        books = Books(reach, Here(home), folder, [])
        try:
            wait_for_line(platform, READY)
            yield books
        finally:
            for one in books.agents:
                end(one)
            end(platform)


@pytest.fixture
def books(running: Books, tmp_path: Path) -> Books:
    """The same, with a folder of effects for one test."""
    running.folder = tmp_path
    return running


def test_a_lost_call_is_listed_and_shown(books: Books) -> None:
    """`reach call` names the id; `ls` has a line, `show` says who called what and what to check; both speak JSON."""
    reach_id = books.lost(1, "--session", "s-1")
    books.wait_listed(reach_id)
    listed = books.outcomes("ls", "--capability", "ledger.*").stdout
    shown = books.outcomes("show", reach_id).stdout
    told = json.loads(books.outcomes("show", reach_id, "--json").stdout)

    assert [reach_id, "ledger.post"] == next(
        line.split()[:2] for line in listed.splitlines() if line.startswith(reach_id)
    )
    assert "it is not known whether it was done" in shown
    assert "the instance that had it is gone (INSTANCE_GONE)" in shown
    assert "none: whoever repeats the call has it done again" in shown
    assert f"reach outcomes resolve {reach_id} executed" in shown
    assert {"n": 1, "folder": str(books.folder)} == told["rows"][0]["outcome"]["parameters"]
    assert "s-1" == told["rows"][0]["outcome"]["session_id"]
    assert reach_id in {row["outcome"]["reach_id"] for row in books.listed("--since", "5m")}


def test_executed_is_never_done_again(books: Books) -> None:
    """Whoever repeats the call is given the operator's result, as a duplicate, and nothing is written."""
    reach_id = books.lost(2, "--key", "two")
    books.wait_listed(reach_id)
    assert Exit.UNSURE == books.call(2, "--key", "two").returncode  # As long as nobody has looked.
    done = books.outcomes("resolve", reach_id, "executed", "--result", '{"entry": 2}', "--note", "seen")
    again = [json.loads(books.call(2, "--key", "two", "--json").stdout) for _ in range(2)]

    assert "resolved as executed: its idempotency entry is done\n" == done.stdout
    assert [({"entry": 2}, True)] * 2 == [(one["data"], one["duplicate"]) for one in again]
    assert [2] == books.effects
    assert reach_id not in {row["outcome"]["reach_id"] for row in books.listed()}
    resolved = next(row for row in books.listed("--all") if row["outcome"]["reach_id"] == reach_id)
    assert ("executed", "seen") == (resolved["resolution"]["verdict"], resolved["resolution"]["note"])


def test_not_executed_is_done_by_the_next(books: Books) -> None:
    """Whoever repeats the call has it done, once."""
    reach_id = books.lost(3, "--key", "three", when="before")
    books.wait_listed(reach_id)
    assert [] == books.effects
    done = books.outcomes("resolve", reach_id, "not-executed")
    replies = [json.loads(books.call(3, "--key", "three", "--json").stdout) for _ in range(2)]

    assert "its idempotency entry is released" in done.stdout
    assert [{"entry": 3}] * 2 == [one["data"] for one in replies]
    assert [False, True] == [one["duplicate"] for one in replies]
    assert [3] == books.effects


@pytest.mark.parametrize(("n", "options"), [(4, ()), (5, ("--key", "five"))])
def test_a_retry_is_done_once(books: Books, n: int, options: tuple[str, ...]) -> None:
    """It is made at once, and printed; the second operator is told who was first, and may send it under its key."""
    reach_id = books.lost(n, *options, when="before")
    books.wait_listed(reach_id)
    first = books.outcomes("resolve", reach_id, "retry", "--by", "jo")
    second = books.outcomes("resolve", reach_id, "retry", "--by", "kim")
    third = books.outcomes("resolve", reach_id, "retry", "--again", "--by", "kim", "--json")
    other = books.outcomes("resolve", reach_id, "executed", "--by", "kim")

    assert (0, {"entry": n}) == (first.returncode, json.loads(first.stdout))
    assert Exit.FAILED == second.returncode
    assert "Jo resolved it as retry at" in second.stderr
    assert ({"entry": n}, True) == tuple(json.loads(third.stdout)[name] for name in ("data", "duplicate"))
    assert Exit.FAILED == other.returncode
    assert [n] == books.effects


def test_a_lost_task_is_listed_and_tried_anew(books: Books) -> None:
    """A task that ended as unknown is on the list under its own id; a retry submits it anew."""
    books.serve()
    (books.folder / "crash-after").touch()
    submitted = books.reach("submit", "ledger.close", "n:=6", f"folder={books.folder}", "--wait")
    (task_id,) = re.findall(r"reach outcomes show (\w+)", submitted.stderr)
    books.wait_listed(task_id)
    books.serve()
    done = books.outcomes("resolve", task_id, "retry")

    assert f"{task_id}\n" == done.stdout
    assert "6\n" == books.reach("task", "watch", task_id).stdout
    assert [6, 6] == books.effects


def test_the_list_is_followed(books: Books) -> None:
    """`ls --watch --json` gives the list again and again, a line each."""
    watching = books.reach.start("outcomes", "ls", "--all", "--watch", "--json")
    try:
        assert "rows" in json.loads(wait_for_line(watching, "{"))
    finally:
        end(watching)


def test_what_is_typed_wrongly_is_refused(books: Books) -> None:
    """A verdict that is none, a result that is no JSON or goes with nothing, and an id that is not there."""
    for words, why in (
        (("resolve", "rch_x", "perhaps"), "executed, not-executed, retry"),
        (("resolve", "rch_x", "executed", "--result", "done"), "Text needs quotes"),
        (("resolve", "rch_x", "retry", "--result", "1"), "--result goes with executed"),
    ):
        done = books.outcomes(*words)
        assert (Exit.USAGE, True) == (done.returncode, why in done.stderr), done.stderr
    done = books.outcomes("show", "rch_nobody")
    assert Exit.FAILED == done.returncode
    assert "rch_nobody is not on the list" in done.stderr


def test_without_a_platform_nobody_keeps_the_list(at_bus: Reach) -> None:
    """Where none runs that is said, with what would help."""
    done = at_bus("outcomes", "ls")
    assert Exit.NO_CONNECTION == done.returncode
    assert "the platform does not answer" in done.stderr
