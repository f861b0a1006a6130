"""`reach up`: what it starts, how it tells, what it does when something dies, and that it leaves nothing behind."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from reach.bus.state import process_identity
from reach.cli.exits import Exit, Refusal
from reach.cli.keeper import Job, Keeper
from tests.cli.terminal import Program, Reach, end, wait_for_line, wait_until

ROOT = Path(__file__).resolve().parents[2]


def gone(pid: int) -> bool:
    return not process_identity(pid)


def started(reach: Reach, *arguments: str) -> tuple[Program, dict[str, object]]:
    """Start it, and give what it says when it is ready."""
    process = reach.start("up", "--port", "0", "--json", *arguments)
    return process, json.loads(wait_for_line(process, "ready"))


def pids(facts: dict[str, object]) -> tuple[int, int]:
    return int(str(facts["pid"])), int(str(facts["platform_pid"]))


def test_people_are_told_where_it_is_and_what_to_do_next(reach: Reach) -> None:
    """The line with "ready" names the address; the commands to go on with follow."""
    process = reach.start("up", "--port", "0")
    try:
        assert "✔ Reach is ready at nats://127.0.0.1:" in wait_for_line(process, "ready")
        assert "reach run" in wait_for_line(process, "serve")
        assert "reach caps" in wait_for_line(process, "call")
    finally:
        end(process)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_stopped_in_order_it_leaves_nothing(reach: Reach, number: int) -> None:
    """On Ctrl-C and SIGTERM the platform and then the server end; the exit code is 0."""
    process, facts = started(reach)
    server, platform = pids(facts)
    assert not gone(server)
    assert not gone(platform)
    assert 0 == end(process, number=number)
    assert gone(server)
    assert gone(platform)


def test_killed_it_leaves_nothing_either(reach: Reach) -> None:
    """Even kill -9 takes the server and the platform with it."""
    process, facts = started(reach)
    end(process, number=signal.SIGKILL)
    wait_until(lambda: all(gone(pid) for pid in pids(facts)))


def test_second_finds_the_first(reach: Reach) -> None:
    """A second `reach up` says where the first one is, and is done."""
    process, facts = started(reach)
    try:
        second = reach("up")
        as_json = json.loads(reach("up", "--json").stdout)
        assert 0 == second.returncode
        assert f"already running at {facts['url']} (pid {facts['pid']})" in second.stdout
        assert ("running", facts["url"]) == (as_json["status"], as_json["url"])
        assert None is process.poll()
    finally:
        end(process)


def test_platform_that_dies_is_started_again(reach: Reach) -> None:
    """The platform killed with -9 is back, told on stderr, and works."""
    process, facts = started(reach)
    try:
        _, platform = pids(facts)
        os.kill(platform, signal.SIGKILL)
        wait_until(lambda: gone(platform))
        wait_until(lambda: 0 == reach("doctor").returncode)
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.finish()
    assert "The platform ended (signal 9). Starting it again" in err


def test_server_that_dies_is_started_again(reach: Reach) -> None:
    """NATS killed with -9 is back at the same address with the same keys, and the platform with it."""
    process, facts = started(reach)
    server, _ = pids(facts)
    try:
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: gone(server))
        wait_until(lambda: process.poll() is not None or 0 == reach("doctor").returncode, timeout_s=60)
        found = reach("up", "--json").stdout
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.finish()
    assert 0 == process.returncode, err
    assert "NATS ended. Starting it again." in err
    assert facts["url"] == json.loads(found)["url"]


def test_busy_port_that_was_asked_for_is_an_error(reach: Reach) -> None:
    """A port that another program has is named; nothing is left running."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = reach("up", "--port", str(port))
    assert Exit.SETUP == done.returncode
    assert f"Port {port} on 127.0.0.1 is taken by another program." in done.stderr


def test_folder_that_cannot_be_is_an_error(reach: Reach, tmp_path: Path) -> None:
    """A state folder that is a file is told, with what would be right."""
    (tmp_path / "file").touch()
    done = reach("up", "--home", tmp_path / "file")
    assert (Exit.SETUP, True) == (done.returncode, "REACH_HOME" in done.stderr)


def test_other_address_in_the_environment_is_pointed_at(reach: Reach) -> None:
    """REACH_URL would send other commands elsewhere: that is said."""
    process = reach.start("up", "--port", "0", env={"REACH_URL": "nats://127.0.0.1:1"})
    try:
        wait_for_line(process, "ready")
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.finish()
    assert "REACH_URL is set: other commands go there" in err


def test_only_the_platform_beside_another_nats(reach: Reach, tmp_path: Path) -> None:
    """With --url no server is started; the platform makes the stores where it is told to."""
    first, facts = started(reach)
    second = Reach(reach.env, tmp_path)
    try:
        beside, told = started_beside(second, str(facts["url"]))
        try:
            assert "pid" not in told
            assert facts["url"] == told["url"]
        finally:
            assert 0 == end(beside)
    finally:
        end(first)


def started_beside(reach: Reach, url: str) -> tuple[Program, dict[str, object]]:
    home = reach.env["REACH_HOME"]
    process = reach.start("up", "--url", url, "--json", env={"REACH_NKEY": f"{home}/keys/platform.nk"})
    return process, json.loads(wait_for_line(process, "ready"))


def test_demo_serves_three_instances(reach: Reach) -> None:
    """`reach up --demo` is ready when its agents are; the call that it shows works; nothing is left."""
    pytest.importorskip("facturx")
    process = reach.start("up", "--port", "0", "--demo")
    try:
        wait_for_line(process, "ready")
        shown = wait_for_line(process, "reach call").split("reach ", 1)[1].split()
        present = json.loads(reach("ps", "--json").stdout)
        assert [["invoice.extract"]] * 3 == [one["capabilities"] for one in present]
        done = Reach(reach.env, ROOT)(*shown)
        assert (0, "invoice") == (done.returncode, json.loads(done.stdout)["kind"])
    finally:
        assert 0 == end(process)


# --------------------------------------------------------------------------------------------------- the keeper


def job(code: str, *, hopeless: frozenset[int] = frozenset()) -> Job:
    return Job(
        name="It",
        command=[sys.executable, "-u", "-c", code],
        env=dict(os.environ),
        is_ready=lambda line: line == "ready",
        hopeless=hopeless,
    )


@pytest.mark.anyio
async def test_what_fails_again_and_again_is_given_up() -> None:
    """A child that dies more often than is borne ends with what it said last."""
    told: list[str] = []
    keeper = Keeper(job("print('no luck'); raise SystemExit(7)"), log=told.append)
    with pytest.raises(Refusal) as caught:
        await keeper.run()
    assert "It ended (exit code 7), and is not started again" in caught.value.message
    assert "no luck" == caught.value.fix
    assert 3 == keeper.restarts


@pytest.mark.anyio
async def test_what_can_never_work_is_not_tried_again() -> None:
    """An exit code that says "wrong set-up" ends it at once."""
    keeper = Keeper(job("raise SystemExit(4)", hopeless=frozenset({4})), log=lambda _: None)
    with pytest.raises(Refusal):
        await keeper.run()
    assert 0 == keeper.restarts


@pytest.mark.anyio
async def test_it_ends_when_asked() -> None:
    """A child is ready when it says so, and ends when its standard input does."""
    import asyncio

    keeper = Keeper(job("import sys; print('ready'); sys.stdin.read()"), log=lambda _: None)
    async with asyncio.TaskGroup() as group:
        group.create_task(keeper.run())
        async with asyncio.timeout(20):
            await keeper.ready.wait()
        keeper.stop()
    assert 0 == keeper.restarts


def test_leash_ends_its_child_when_the_owner_is_gone(tmp_path: Path) -> None:
    """A child that knows nothing of its owner ends with it, by SIGTERM."""
    from reach.cli import leash

    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('bye', flush=True), sys.exit(3)))\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", leash.__file__, "10", sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    out, _ = process.communicate(timeout=20)
    assert ("bye\n", 3) == (out, process.returncode)
    assert gone(child)
