"""The pytest plugin, run in a small project of its own under each of the runners that a project may use."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

AGENT = """
import asyncio, os, subprocess, sys
import pytest
import reach
from reach.bus.blobs import Blobs

def greeter():
    agent = reach.Agent("greeter")

    @agent.capability("greet.hello")
    async def hello(name: str) -> str:
        return f"Hello, {name}!"

    return agent
"""

ON_ASYNCIO = """
@pytest.fixture
def anyio_backend():
    return "asyncio"
"""

CALLS = """
async def test_a_call(reach_agent, reach_bus, reach_harness):
    instance = await reach_agent(greeter())
    reply = await reach_bus.request("greet.hello", {"name": "Ada"})
    assert "Hello, Ada!" == reply.unwrap()
    assert instance.name == reply.instance
    assert ["ok"] == [record.outcome for record in reach_harness.records]

class TestInAClass:
    async def test_nobody_is_there(self, reach_bus):
        reply = await reach_bus.request("greet.hello", {"name": "Ada"})
        assert "NO_RESPONDERS" == reply.error.reason
"""

EVERYTHING = (
    AGENT
    + ON_ASYNCIO
    + CALLS
    + """
SEEN = []

async def test_leaves_much_behind(reach_harness, reach_agent, reach_bus, reach_server):
    await reach_agent(greeter())
    SEEN.append((reach_server.url, await Blobs(reach_bus.connection).put(b"x", bucket="reach_blobs_1h")))
    code = "import reach, test_project as t; reach.run(t.greeter())"
    left = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    assert "serves greet.hello" in left.stderr.readline()
    SEEN.append(left)

async def test_finds_nothing_of_it(reach_bus, reach_server):
    url, ref = SEEN[0]
    assert url == reach_server.url
    assert not (await reach_bus.request("greet.hello", {"name": "Ada"})).ok
    with pytest.raises(reach.UpstreamRefusal):
        await Blobs(reach_bus.connection).get(ref, limit=10)
    SEEN[1].kill()
    SEEN[1].communicate()

async def test_own_code(reach_agent):
    await reach_agent(greeter())
    async with reach.connect() as bus:
        assert (await bus.request("greet.hello", {"name": "Ada"})).ok

async def test_other_process(reach_agent):
    await reach_agent(greeter())
    code = (
        "import asyncio, reach\\n"
        "async def main():\\n"
        "    async with reach.connect() as bus:\\n"
        "        print((await bus.request('greet.hello', {'name': 'Bob'})).unwrap())\\n"
        "asyncio.run(main())\\n"
    )
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=subprocess.PIPE)
    assert b"Hello, Bob!" in (await other.communicate())[0]

async def test_asserts(reach_bus):
    assert 1 == 2

async def test_skips(reach_bus):
    pytest.skip("not today")

async def test_serves_nothing(reach_agent):
    await reach_agent(reach.Agent("empty"))

STOPPED = []

async def test_stopping(reach_harness, reach_bus):
    agent = greeter()
    agent.on_stop(lambda: STOPPED.append("one"))
    first = await reach_harness.serve(agent)
    second = await reach_harness.serve(agent)
    await reach_harness.stop(first)
    assert second.name == (await reach_bus.request("greet.hello", {"name": "Ada"})).instance
    assert ["one"] == STOPPED

def test_all_have_left():
    assert ["one", "one"] == STOPPED

@pytest.fixture
def early(reach_bus):
    reach_bus.request

async def test_early(early):
    pass

def test_sync_bus(reach_bus):
    pass

@pytest.fixture
async def patient(reach_harness):
    async with reach_harness:
        await reach_harness.serve(greeter())
        async with reach_harness.bus(timeout_s=3) as bus:
            yield bus

async def test_own_fixture(patient):
    assert (await patient.request("greet.hello", {"name": "Ada"})).ok

def test_environment(reach_harness):
    assert os.environ["REACH_HOME"] == str(reach_harness.home) == reach_harness.env["REACH_HOME"]
    assert "REACH_URL" not in os.environ

def test_clock(manual_clock):
    before = manual_clock.monotonic()
    manual_clock.advance(30)
    assert before + 30 == manual_clock.monotonic()

def test_two_systems(reach_server):
    with reach_server.account() as one, reach_server.account() as other:
        assert one != other
"""
)

needs_pytest_asyncio = pytest.mark.skipif(find_spec("pytest_asyncio") is None, reason="needs pytest-asyncio")


def run_project(folder: Path, *, settings: str, body: str, arguments: tuple[str, ...] = ()) -> str:
    """Run a project with one test module as a user would; gives what pytest printed."""
    folder.joinpath("pytest.ini").write_text(
        f"[pytest]\nfilterwarnings = error\n{settings}\n", encoding="utf-8"
    )
    folder.joinpath("test_project.py").write_text(body, encoding="utf-8")
    found = any(entry.value == "reach.testing.plugin" for entry in entry_points(group="pytest11"))
    plugin = () if found else ("-p", "reach.testing.plugin")
    paths = [str(ROOT), str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, *arguments, "-p", "no:cacheprovider", "-rA", "-q"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "REACH_URL": "nats://192.0.2.1:4222"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest printed about the whole project, under anyio."""
    folder = tmp_path_factory.mktemp("project")
    return run_project(folder, settings="anyio_mode = auto", body=EVERYTHING, arguments=("-p", "no:asyncio"))


@pytest.fixture
def ends(output: str) -> Callable[[str], str]:
    """How a test of the project ended: PASSED, FAILED, SKIPPED or ERROR."""

    def end_of(name: str) -> str:
        found = re.search(rf"^(PASSED|FAILED|ERROR) test_project\.py::{name}\b", output, re.MULTILINE)
        return found[1] if found else output

    return end_of


def test_a_test_serves_and_calls(ends: Callable[[str], str]) -> None:
    """An agent is served, called, and the call recorded, in functions and in classes, under anyio."""
    assert ["PASSED"] * 2 == [ends("test_a_call"), ends("TestInAClass::test_nobody_is_there")]


@needs_pytest_asyncio
@pytest.mark.parametrize(("mode", "mark"), [("auto", ""), ("strict", "pytestmark = pytest.mark.asyncio\n")])
def test_the_same_under_pytest_asyncio(tmp_path: Path, mode: str, mark: str) -> None:
    """The same tests run unchanged under pytest-asyncio in both of its modes."""
    settings = f"asyncio_mode = {mode}\nasyncio_default_fixture_loop_scope = function"
    assert "2 passed" in run_project(tmp_path, settings=settings, body=AGENT + mark + CALLS)


def test_tests_do_not_see_each_other(ends: Callable[[str], str]) -> None:
    """Agents (also in other processes) and blobs of one test are not there in the next; the server is the same."""
    assert ["PASSED"] * 2 == [ends("test_leaves_much_behind"), ends("test_finds_nothing_of_it")]


def test_code_under_test_finds_the_system_by_itself(ends: Callable[[str], str]) -> None:
    """`reach.connect()` without arguments, here and in another process, leads into the test's own system."""
    assert ["PASSED"] * 2 == [ends("test_own_code"), ends("test_other_process")]


def test_a_failing_test_fails_as_itself(ends: Callable[[str], str], output: str) -> None:
    """Assertions, skips and errors come through the harness as they are, not as groups."""
    assert ["FAILED"] * 2 == [ends("test_asserts"), ends("test_serves_nothing")]
    assert "ValueError: empty serves nothing yet" in output
    assert "not today" in output
    assert "ExceptionGroup" not in output


def test_agents_are_stopped_one_by_one_and_at_the_end(ends: Callable[[str], str]) -> None:
    """An instance may leave in the middle of a test; the rest leave with it, their stop hooks run."""
    assert ["PASSED"] * 2 == [ends("test_stopping"), ends("test_all_have_left")]


def test_the_bus_says_when_it_is_there(ends: Callable[[str], str], output: str) -> None:
    """Asked for too early, or by a test that is not async, the bus explains itself."""
    assert ["ERROR"] * 2 == [ends("test_early"), ends("test_sync_bus")]
    assert "reach_bus is for `async def` tests" in output
    assert "In a fixture write `async with reach_harness.bus() as bus:`" in output


def test_fixtures_of_the_user_may_use_the_harness(ends: Callable[[str], str]) -> None:
    """A user's own async fixture connects with options of its own and serves an agent for its tests."""
    assert "PASSED" == ends("test_own_fixture")


def test_sync_tests_have_a_system_too(ends: Callable[[str], str]) -> None:
    """A test that only starts programs gets its system by environment; clock and accounts need no loop."""
    assert ["PASSED"] * 3 == [ends("test_environment"), ends("test_clock"), ends("test_two_systems")]


def test_on_trio_the_plugin_says_what_to_do(tmp_path: Path) -> None:
    """A project that runs its tests on another loop library is told why that cannot be."""
    if find_spec("trio") is None:
        pytest.skip("needs trio")
    body = AGENT + "@pytest.fixture\ndef anyio_backend():\n    return 'trio'\n" + CALLS
    printed = run_project(tmp_path, settings="anyio_mode = auto", body=body, arguments=("-p", "no:asyncio"))
    assert "Reach runs on asyncio, because nats-py does" in printed


def test_unrelated_projects_hardly_notice() -> None:
    """Loading the plugin imports none of Reach's rooms and nothing of NATS; that is left to the fixtures."""
    code = (
        "import sys, reach.testing.plugin\n"
        "heavy = {'nats', 'pydantic', 'msgpack', 'prometheus_client', 'uvloop'}\n"
        "rooms = {name.split('.')[1] for name in sys.modules if name.startswith('reach.')}\n"
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}), sorted(rooms))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, cwd=ROOT, check=True
    )
    assert "[] ['testing']\n" == done.stdout
