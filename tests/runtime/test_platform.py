"""The platform process: isolated from its surroundings, plain about what is wrong, and gone when it should be."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reach.bus.keys import Role
from reach.bus.state import StateFolder
from reach.ids import instance_id
from reach.runtime.child import RoleUnavailable
from reach.runtime.platform import READY, ROOT, Plan, platform_command, settings_of
from reach.wire import codec, subjects

Until = Callable[..., Any]
SENTINEL = "actors.sentinel.actor:Sentinel"
"""Named, so that a checkout that was not installed, and so has no entry points, passes too."""

WITHIN_S = 20


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Make a user's folder whose packages are called as ours are, and fail when imported."""
    folder = tmp_path / "user"
    for package in ("actors", "actors/sentinel", "schemas", "reach", "reach/runtime"):
        (folder / package).mkdir(parents=True)
    for module in (
        "actors/__init__.py",
        "actors/sentinel/__init__.py",
        "actors/sentinel/actor.py",
        "schemas/__init__.py",
        "reach/__init__.py",
        "reach/runtime/__init__.py",
        "reach/runtime/platform.py",
        "anyio.py",
        "sitecustomize.py",
        "platform.py",
        "mine.py",
    ):
        (folder / module).write_text("raise SystemExit('somebody else’s module was imported')\n")
    return folder


@contextmanager
def started(
    command: list[str],
    *,
    cwd: Path = ROOT,
    env: dict[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
) -> Iterator[subprocess.Popen[str]]:
    """Start a process, and end it with the block."""
    with subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    """Read the line that says that it is ready; what it complained of instead, if it ended."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], WITHIN_S)
    assert readable, "nothing was printed"
    line = process.stdout.readline()
    return line or process.communicate()[1]


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for its end: the exit code, and what it said on standard error."""
    _, complaint = process.communicate(timeout=WITHIN_S)
    return process.returncode, complaint


def refused(command: list[str], **options: Any) -> tuple[int, str]:
    with started(command, **options) as process:
        return ended(process)


def user_module(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text("from reach.runtime.actor import Actor, Message, every, on\n" + body)


# -- starting and stopping ---------------------------------------------------------------------------------


def test_one_line_when_ready_and_zero_when_stopped(own_system: Any) -> None:
    """It prints where it is and what it hosts once all of it runs, has made the buckets, and stops on SIGTERM."""
    with started(platform_command(own_system.home, actors=[SENTINEL])) as process:
        line = first_line(process)
        assert line.startswith(f"{READY} at {own_system.server.url}: ")
        assert "sentinel" in line.rpartition(": ")[2].strip().split(", ")
        process.send_signal(signal.SIGTERM)
        code, log = ended(process)
    assert (0, True, True) == (code, "made or changed: reach_blobs_1h" in log, "SIGTERM, stopping" in log)


def test_it_stops_when_its_starter_dies(system: Any) -> None:
    """With its standard input watched it ends with whoever holds the other end, kill -9 included."""
    command = platform_command(system.home, actors=[SENTINEL], watch_stdin=True)
    with started(command, stdin=subprocess.PIPE) as process:
        assert first_line(process).startswith(READY)
        code, _ = ended(process)  # Closes our end.
    assert 0 == code


async def test_a_crash_is_told_by_the_whole_process(system: Any, until: Until) -> None:
    """LIFE-4: started as `reach up` starts it, it tells callers of an agent's end."""
    who = instance_id("reader")
    heard: list[str] = []
    with started(platform_command(system.home, actors=[SENTINEL])) as process:
        assert first_line(process).startswith(READY)
        async with system.connection() as caller:
            caller.subscribe(subjects.GONE_ALL, lambda delivery: heard.append(delivery.subject))
            await caller.flush()
            async with system.connection(Role.AGENT, who=who):
                pass
            await until(lambda: any(who in subject for subject in heard))


def test_a_second_signal_does_not_wait(system: Any, tmp_path: Path) -> None:
    """An actor that takes its time is cancelled by the second SIGTERM, and the process ends well."""
    user_module(
        tmp_path / "user",
        "slow_actor",
        textwrap.dedent("""
        import asyncio
        class Slow(Actor):
            @every(0.01)
            async def work(self) -> None:
                print("working", flush=True)
                await asyncio.sleep(60)
        """),
    )
    command = platform_command(system.home, actors=["slow_actor:Slow"], paths=[tmp_path / "user"])
    with started(command) as process:
        assert process.stdout is not None
        lines = {first_line(process)[: len(READY)], process.stdout.readline().strip()}
        assert {READY, "working"} == lines
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        while "stopping" not in (process.stderr.readline() if process.stderr else "stopping"):
            pass
        process.send_signal(signal.SIGTERM)
        code, log = ended(process)
    assert (0, True) == (code, "cancelling what is left" in log)
    assert time.monotonic() - began < 10


# -- isolation ---------------------------------------------------------------------------------------------


def test_a_users_folder_shadows_nothing(system: Any, hostile: Path) -> None:
    """Neither the current folder nor PYTHONPATH, both holding `actors`, `schemas` and more, is looked at."""
    command = platform_command(system.home, actors=[SENTINEL])
    with started(command, cwd=hostile, env={"PYTHONPATH": str(hostile)}) as process:
        assert "sentinel" in first_line(process)


def test_started_by_hand_it_isolates_itself(system: Any, hostile: Path) -> None:
    """`python -m reach.runtime.platform` in such a folder replaces itself by an isolated process."""
    command = [
        sys.executable,
        "-m",
        "reach.runtime.platform",
        "--home",
        str(system.home),
        "--actor",
        SENTINEL,
    ]
    (hostile / "reach").rename(hostile / "other")  # Else it is not ours that is started,
    for module in ("anyio.py", "platform.py", "sitecustomize.py"):  # and these would come before it.
        (hostile / module).unlink()
    path = os.pathsep.join([str(hostile), str(ROOT)])
    with started(command, cwd=hostile, env={"PYTHONPATH": path}) as process:
        assert "sentinel" in first_line(process)


def test_folders_of_users_actors_come_last(system: Any, hostile: Path) -> None:
    """A folder named to import an actor from shadows nothing, though it holds `actors` and `reach` too."""
    (hostile / "mine.py").unlink()
    user_module(
        hostile,
        "mine",
        textwrap.dedent("""
        class Echo(Actor):
            @on("test.platform.echo")
            def echo(self, message: Message) -> None:
                message.reply({"by": self.name})
        """),
    )
    command = platform_command(system.home, actors=[SENTINEL, "echo-1=mine:Echo"], paths=[hostile])
    with started(command) as process:
        assert first_line(process).rstrip().endswith(", echo-1")


async def test_users_actors_are_found_by_entry_point(system: Any, tmp_path: Path) -> None:
    """A package that announces an actor in the group `reach.actors` has it hosted."""
    user = tmp_path / "site"
    user_module(
        user,
        "announced",
        textwrap.dedent("""
        class Echo(Actor):
            @on("test.platform.announced")
            def echo(self, message: Message) -> None:
                message.reply({"by": self.name})
        """),
    )
    about = user / "announced-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: announced\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[reach.actors]\necho = announced:Echo\n")
    with started(platform_command(system.home, actors=[SENTINEL], paths=[user])) as process:
        assert "echo" in first_line(process)
        async with system.connection(Role.PLATFORM) as connection:
            answer = await connection.request("test.platform.announced", b"", timeout_s=5)
    assert {"by": "platform/echo"} == codec.unpack(answer)


# -- what is wrong is said ---------------------------------------------------------------------------------


def test_without_a_server_it_says_how_to_start_one(tmp_path: Path) -> None:
    """A state folder without a running server ends it with the cure."""
    StateFolder(tmp_path / "home").create()
    code, complaint = refused(platform_command(tmp_path / "home", actors=[SENTINEL]))
    assert (4, True) == (code, "Start one with `reach up`" in complaint)


def test_a_nats_that_is_not_there_is_named(tmp_path: Path, unused_tcp_port: int) -> None:
    """Case 20: an address where nobody listens ends it within the connect timeout, naming the address."""
    url = f"nats://127.0.0.1:{unused_tcp_port}"
    code, complaint = refused(platform_command(tmp_path, url=url, actors=[SENTINEL]))
    assert (3, True) == (code, f"NATS at {url} cannot be reached" in complaint)


@pytest.mark.parametrize(
    ("actors", "words"),
    [
        (["nonsense"], "Right would be package.module:ClassName"),
        (["nowhere.at_all:Thing"], "cannot be loaded: No module named 'nowhere'"),
        (
            ["actors.sentinel.actor:Nobody"],
            "cannot be loaded: module 'actors.sentinel.actor' has no attribute",
        ),
        (["json:__name__"], "is a str. Right would be a class derived from Actor."),
        ([SENTINEL, "sentinel=json:loads"], "Two actors are called sentinel"),
        (["a.b=json:loads"], "cannot be an actor name"),
    ],
)
def test_an_actor_that_cannot_be_hosted_is_named(system: Any, actors: list[str], words: str) -> None:
    """What is not an actor, or claims another's name, ends it before anything starts."""
    code, complaint = refused(platform_command(system.home, actors=actors))
    assert (4, True) == (code, words in complaint), complaint


def test_a_user_module_that_fails_when_imported_is_named(system: Any, tmp_path: Path) -> None:
    """An exception inside the module is told by type and place, without its words."""
    user_module(tmp_path / "user", "broken_actor", "raise ValueError('a secret')\n")
    command = platform_command(system.home, actors=["broken_actor:It"], paths=[tmp_path / "user"])
    code, complaint = refused(command)
    assert (4, True, False) == (
        code,
        "fails while it is imported: ValueError at" in complaint,
        "secret" in complaint,
    )


def test_actors_that_keep_failing_end_it(system: Any, tmp_path: Path) -> None:
    """LIFE-9: past the limit the process ends with 1, and says which actor and how often."""
    user_module(
        tmp_path / "user",
        "hopeless_actor",
        textwrap.dedent("""
        class Hopeless(Actor):
            async def on_start(self) -> None:
                raise ValueError("a secret")
        """),
    )
    command = platform_command(system.home, actors=["hopeless_actor:Hopeless"], paths=[tmp_path / "user"])
    code, complaint = refused(command)
    assert (1, False) == (code, "a secret" in complaint)
    assert "platform/hopeless gave up. hopeless failed, and hopeless was restarted 3 times" in complaint


def test_watching_no_pipe_is_refused(system: Any) -> None:
    """A standard input that has no other end would end it at once, or never."""
    code, complaint = refused(platform_command(system.home, actors=[SENTINEL], watch_stdin=True))
    assert (4, True) == (code, "needs a pipe as standard input" in complaint)


# -- who connects how --------------------------------------------------------------------------------------


def test_at_its_own_server_each_role_has_its_key(system: Any) -> None:
    """What the environment says of other servers and logins does not count for the state folder's."""
    env = {"REACH_URL": "nats://elsewhere:4222", "REACH_TOKEN": "t", "REACH_CONTEXT": "c"}
    found = [settings_of(role, Plan(home=system.home), env) for role in (Role.PLATFORM, Role.FENCER)]
    assert [(system.server.url,)] * 2 == [settings.servers for settings in found]
    keys = [settings.credentials.nkey_file for settings in found]
    assert ["platform.nk", "fencer.nk"] == [key.name for key in keys if key is not None]


def test_at_another_nats_the_fencer_has_a_login_of_its_own(system: Any, tmp_path: Path) -> None:
    """The environment's login is the platform's; the fencer's is named, or there is none."""
    plan = Plan(home=tmp_path, url="nats://elsewhere.example:4222")
    fencer = str(system.home / "keys" / "fencer.nk")
    platform = str(system.home / "keys" / "platform.nk")
    env = {"REACH_NKEY": platform}
    with pytest.raises(RoleUnavailable, match="REACH_FENCER_CREDS or REACH_FENCER_NKEY"):
        settings_of(Role.FENCER, plan, env)
    found = [
        settings_of(role, plan, env | {"REACH_FENCER_NKEY": fencer}) for role in (Role.PLATFORM, Role.FENCER)
    ]
    assert [platform, fencer] == [str(settings.credentials.nkey_file) for settings in found]
