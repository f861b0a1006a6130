"""`reach run`: agents from modules, with errors that know what was meant."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from reach.cli.exits import Exit
from tests.cli.terminal import COMMAND, SHOP, Reach, end, wait_for_line, wait_until

EMPTY = "import reach\n\nagent = reach.Agent('empty')\nother = 3\n"
TWO = (
    SHOP
    + "\n\nsecond = reach.Agent('second')\n\n\n@second.capability('two')\nasync def two() -> int:\n    return 2\n"
)


@pytest.fixture
def here(at_bus: Reach) -> Reach:
    """The command, in a folder with modules."""
    (at_bus.cwd / "shop.py").write_text(SHOP)
    (at_bus.cwd / "empty.py").write_text(EMPTY)
    (at_bus.cwd / "two.py").write_text(TWO)
    (at_bus.cwd / "broken.py").write_text("import reach\n\n1 / 0\n")
    (at_bus.cwd / "syntax.py").write_text("def f(:\n")
    (at_bus.cwd / "needs.py").write_text("import no_such_package\n")
    return at_bus


@pytest.mark.parametrize(
    ("target", "code", "said"),
    [
        ("shp:agent", Exit.USAGE, "Did you mean shop?"),
        ("nothing.like_it", Exit.USAGE, "There is no module 'nothing.like_it' in"),
        ("shop:agnt", Exit.USAGE, "Did you mean shop:agent?"),
        ("shop:zzz", Exit.USAGE, "Agents there: shop:agent"),
        ("shop:Order", Exit.USAGE, "shop:Order is not an agent but the class Order."),
        ("empty:other", Exit.USAGE, "empty:other is not an agent but a int."),
        ("empty:agent", Exit.USAGE, "empty:agent serves nothing yet."),
        ("two", Exit.USAGE, "Say which: two:agent two:second"),
        ("1x:agent", Exit.USAGE, "is not the name of a module"),
        ("broken:agent", Exit.SETUP, "broken cannot be imported: ZeroDivisionError: division by zero"),
        ("syntax:agent", Exit.SETUP, "syntax.py:1"),
        ("needs:agent", Exit.SETUP, "it needs 'no_such_package', which is not installed."),
    ],
)
def test_what_cannot_be_served_is_told(here: Reach, target: str, code: Exit, said: str) -> None:
    """A target that is not there, or is no agent, is answered with what is."""
    done = here("run", target)
    assert (code, "") == (done.returncode, done.stdout)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_place_of_a_failing_import_is_the_users_line(here: Reach) -> None:
    """The line that failed is named, not our own."""
    assert f"{here.cwd / 'broken.py'}:3" in here("run", "broken:agent").stderr


def test_several_agents_in_one_process(here: Reach) -> None:
    """Two agents of one module serve side by side; both are told as ready."""
    process = here.start("run", "two:agent", "two:second", "--json")
    try:
        ready = [json.loads(wait_for_line(process, "ready")) for _ in range(2)]
        assert {"shop", "second"} == {str(one["instance"]).rpartition("-")[0] for one in ready}
        assert "2\n" == here("call", "two").stdout
    finally:
        assert 0 == end(process)


def test_path_of_a_file_is_understood(here: Reach) -> None:
    """`reach run ./shop.py` is what a person types after TAB."""
    process = here.start("run", "./shop.py", "--json")
    wait_for_line(process, "ready")
    assert 0 == end(process)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_call_in_work_is_answered_before_it_leaves(here: Reach, number: int, tmp_path: Path) -> None:
    """On Ctrl-C and SIGTERM an agent finishes what it has (LIFE-7), and ends with 0."""
    (here.cwd / "lone.py").write_text(SHOP.replace('"shop"', '"lone"').replace('"write"', '"lone.write"'))
    process = here.start("run", "lone", "--json")
    wait_for_line(process, "ready")
    begun = tmp_path / "begun"
    caller = here.start("call", "lone.write", "n=7", f"path={begun}", "seconds=1.5")
    wait_until(begun.exists)
    assert 0 == end(process, number=number)
    out, err = caller.finish()
    assert (0, "7\n") == (caller.returncode, out), err


STUBBORN = """
import asyncio
import threading
import time

import reach

agent = reach.Agent("stubborn")


@agent.capability("stubborn.thread")
async def thread() -> int:
    threading.Thread(target=time.sleep, args=(3600,), name="never-ends").start()
    return 1


@agent.capability("stubborn.executor")
async def executor() -> int:
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 3600)
    return 1


@agent.capability("stubborn.task")
async def task() -> int:
    async def swallow() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass

    agent.kept = asyncio.create_task(swallow())
    return 1
"""


@pytest.mark.parametrize("kind", ["thread", "executor", "task"])
def test_what_handlers_left_behind_does_not_keep_it_alive(here: Reach, kind: str) -> None:
    """LIFE-7: after the last answer the process ends with 0, though a thread never returns or a task swallows
    its cancellation.
    """
    (here.cwd / "stubborn.py").write_text(STUBBORN)
    process = here.start("run", "stubborn", "--json")
    wait_for_line(process, "ready")
    assert "1\n" == here("call", f"stubborn.{kind}").stdout
    assert 0 == end(process)
    assert "left behind" in process.said()
    assert "Traceback" not in process.said()


def test_a_second_signal_does_not_wait(here: Reach, tmp_path: Path) -> None:
    """A handler that takes long is waited for, until somebody insists."""
    (here.cwd / "lone.py").write_text(SHOP.replace('"shop"', '"lone"').replace('"write"', '"lone.write"'))
    process = here.start("run", "lone", "--json")
    wait_for_line(process, "ready")
    begun = tmp_path / "begun"
    caller = here.start("call", "lone.write", "n=7", f"path={begun}", "seconds=25")
    wait_until(begun.exists)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)  # Two signals at once are one.
    assert process.poll() is None
    began = time.monotonic()
    assert 1 == end(process)
    assert time.monotonic() - began < 10.0  # 2 s are promised; 25 s is what the handler would take.
    end(caller)


def test_no_server_is_exit_code_three(reach: Reach) -> None:
    """Where no NATS runs, the agent does not start, and says how to get one."""
    (reach.cwd / "shop.py").write_text(SHOP)
    done = reach("run", "shop:agent")
    assert (Exit.NO_CONNECTION, True) == (done.returncode, "reach up" in done.stderr)


def watched(here: Reach, name: str) -> subprocess.Popen[bytes]:
    """`reach run --watch` as a terminal has it: in a process group of its own."""
    (here.cwd / f"{name}.py").write_text(
        SHOP.replace('"shop"', f'"{name}"').replace('"write"', f'"{name}.write"')
    )
    process = subprocess.Popen(
        [*COMMAND, "run", name, "--watch"],
        env=here.changed(None),
        cwd=here.cwd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: name in here("ps", "--json").stdout)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process


def test_what_is_watched_ends_with_its_watcher(here: Reach) -> None:
    """Killed with -9, `reach run --watch` leaves no agent behind that serves on unseen."""
    pytest.importorskip("watchfiles")
    process = watched(here, "orphan")
    process.kill()
    process.wait()
    wait_until(lambda: "orphan" not in here("ps", "--json").stdout)


def test_ctrl_c_of_watch_loses_no_call(here: Reach, tmp_path: Path) -> None:
    """The terminal's Ctrl-C goes to the whole group: the agent still hears of it once, and finishes what it has."""
    pytest.importorskip("watchfiles")
    process = watched(here, "group")
    begun = tmp_path / "begun"
    caller = here.start("call", "group.write", "n=7", f"path={begun}", "seconds=1.5")
    wait_until(begun.exists)
    os.killpg(process.pid, signal.SIGINT)
    out, err = caller.finish()
    assert (0, "7\n") == (caller.returncode, out), err
    assert Exit.INTERRUPTED == process.wait(20)


def test_watch_starts_again_when_a_file_changes(here: Reach) -> None:
    """With --watch an edited agent serves what it says now."""
    pytest.importorskip("watchfiles")
    module = here.cwd / "edited.py"
    module.write_text(SHOP.replace('"shop"', '"edited"').replace('"text.upper"', '"edited.before"'))
    process = here.start("run", "edited", "--watch", "--json")
    try:
        assert "edited.before" in wait_for_line(process, "ready")
        module.write_text(module.read_text().replace("edited.before", "edited.after"))
        assert "edited.after" in wait_for_line(process, "ready")
    finally:
        end(process, number=signal.SIGINT)
