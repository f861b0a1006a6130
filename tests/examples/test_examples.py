"""Every example runs as its docstring says: served with `reach run`, called by a program in another process."""

import ast
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from standardwebhooks import Webhook

from reach.runtime.platform import READY, platform_command
from reach.testing import Harness

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
MAX_LINES = 40
# Programs of the demonstration, with tests of their own.
OTHERS = {"__init__.py", "invoice_agent.py"}
LIMIT_S = 30.0

Served = Callable[[str], str]
Ran = Callable[..., str]


def shell_env(harness: Harness) -> dict[str, str]:
    """The environment of a newcomer's shell whose Reach is this test's own."""
    return {**os.environ, **harness.env, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "REACH_LANG": "en"}


@contextmanager
def serving(target: str, harness: Harness) -> Iterator[str]:
    """`reach run TARGET` in a process of its own; gives the name of the instance, and ends it afterwards."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "reach.cli.main", "run", *target.split(), "--json"],
            cwd=ROOT,
            env=shell_env(harness),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            ready = process.stdout.readline()
            errors.seek(0)
            assert ready, f"`reach run {target}` did not serve: {errors.read()}"
            yield json.loads(ready)["instance"]
        finally:
            process.terminate()
            process.communicate(timeout=LIMIT_S)


@pytest.fixture
def served(reach_harness: Harness) -> Iterator[Served]:
    """Serve an example until the test ends."""
    with ExitStack() as stack:
        yield lambda target: stack.enter_context(serving(target, reach_harness))


@pytest.fixture
def ran(reach_harness: Harness) -> Ran:
    """Run a Python program of the folder (or `reach …`) to its end; gives what it printed."""

    def run(*command: str, code: int = 0) -> str:
        program = ["-m", "reach.cli.main", *command[1:]] if command[0] == "reach" else list(command)
        done = subprocess.run(
            [sys.executable, *program],
            cwd=ROOT,
            env=shell_env(reach_harness),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert code == done.returncode, done.stderr
        return done.stdout + done.stderr

    return run


def files() -> list[Path]:
    """The examples that this file is about."""
    return [path for path in sorted(EXAMPLES.glob("*.py")) if path.name not in OTHERS]


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_an_example_is_short_and_says_how_to_run_it(path: Path) -> None:
    """A reader takes an example in at one look: at most 40 lines, with the command in the docstring."""
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    said = ast.get_docstring(ast.parse(text)) or ""
    assert any(command in said for command in (f"examples.{path.stem}:", f"examples/{path.name}"))


def test_every_example_is_listed() -> None:
    """The README of the folder names every example, and none that is not there."""
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [] == [path.name for path in files() if f"]({path.name})" not in listed]


def test_every_example_is_run_here() -> None:
    """No example goes untested."""
    here = Path(__file__).read_text(encoding="utf-8")
    names = [path for path in files() if f"examples.{path.stem}:" in here or f"examples/{path.name}" in here]
    assert files() == names


def test_greeter_and_caller(served: Served, ran: Ran) -> None:
    """The caller sees a result, a refusal of its parameters, and that nobody serves the other name."""
    served("examples.greeter:agent")
    assert ran("examples/caller.py").splitlines() == [
        "Hello, Ada!",
        "from greeter, attempt 1",
        "SCHEMA_INVALID/SCHEMA: name is missing (wanted text); unknown field 'nme': did you mean 'name'?",
        "executed: no, advice: fix_params",
        "CONN_REFUSED/NO_RESPONDERS, executed: no",
    ]
    assert "Hello, Ada!\n" == ran("reach", "call", "greet.hello", "name=Ada")


def test_stream(served: Served, ran: Ran) -> None:
    """The reader leaves one report after its first chapter, and gets all of the other."""
    served("examples.report_writer:agent")
    chapters = [f"Chapter {number}: more about harbours.\n" for number in (1, 2, 3)]
    assert "".join(["Chapter 1: more about rivers.\n", *chapters]) == ran("examples/report_reader.py")
    assert "".join(chapters) == ran("reach", "stream", "report.write", "topic=harbours")


def test_threads(served: Served, ran: Ran) -> None:
    """A blocking function is served, and a word that its signature does not know is refused."""
    served("examples.checksums:agent")
    assert "2cf24dba5fb0a30e" in ran("reach", "call", "text.checksum", "text=hello")
    refused = ran("reach", "call", "text.checksum", "text=hello", "algorithm=md5", code=1)
    assert "SCHEMA_INVALID/SCHEMA" in refused


def test_worker_processes(served: Served, ran: Ran) -> None:
    """A function that computes gives the right number from a worker process."""
    served("examples.primes:agent")
    assert "9592\n" == ran("reach", "call", "primes.count", "below:=100000")


def test_nested_calls(served: Served, ran: Ran) -> None:
    """The inner call carries the session of the outer one, and its refusal comes through as it is."""
    served("examples.orders:shop examples.orders:stock")
    said = ran("reach", "call", "order.quote", "item=ladder", "count:=2", "--session", "s-17")
    assert {"item": "ladder", "total": 240, "session": "s-17"} == json.loads(said)
    refused = ran("reach", "call", "order.quote", "item=sledge", "count:=1", code=1)
    assert "UPSTREAM_4XX/NOT_FOUND  there is no item 'sledge'" in refused


def test_broadcast(served: Served, ran: Ran) -> None:
    """Every instance forgets, and answers for itself."""
    instances = [served("examples.purge_caches:agent") for _ in range(2)]
    said = ran("examples/purge_caches.py")
    assert sorted(f"{instance}: 1 forgotten" for instance in instances) == sorted(said.splitlines())


def test_touched_functions(served: Served, ran: Ran) -> None:
    """Capabilities are called like functions, from asyncio and from code without it."""
    served("examples.greeter:agent")
    assert ran("examples/typed_calls.py").splitlines() == [
        "Hello, Grace!",
        "Hello, Ada! Hello, Ada!",
        "True greeter",
    ]


def test_guarded_functions(ran: Ran) -> None:
    """A refused connection is tried again; an unknown outcome of what is not idempotent is told as such."""
    assert ran("examples/guarded.py").splitlines() == [
        "['a7-1', 'a7-2'] after 2 tries",
        "OUTCOME_UNKNOWN DEADLINE ask_human",
    ]


def test_plain_nats_client(served: Served, ran: Ran, reach_harness: Harness) -> None:
    """A NATS client that knows nothing of us is answered in JSON."""
    served("examples.greeter:agent")
    key = reach_harness.home / "keys" / "caller.nk"
    assert ran("examples/plain_nats.py", reach_harness.url, str(key)).splitlines() == [
        "True Hello, Ada! from greeter",
        "SCHEMA_INVALID SCHEMA fix_params",
    ]


def test_a_task_with_progress_and_a_question(served: Served, ran: Ran) -> None:
    """It tells how far it is, asks, and goes on when answered; run again it is the same task; watchers see its end."""
    served("examples.reconcile:agent")
    said = ran("examples/month_end.py").splitlines()
    assert "25% matched 99 of 400" == said[0]
    assert "release [17] of 2025-01?" in said
    assert "{'period': '2025-01', 'matched': 399, 'released': [17]}" == said[-1]
    assert said[-1] == ran("examples/month_end.py").splitlines()[-1]
    assert "ledger.reconcile completed alive\n" == ran("examples/task_watcher.py", "1")


def test_a_pipeline_with_a_plain_client(served: Served, ran: Ran, reach_harness: Harness) -> None:
    """A NATS client alone calls, submits, follows and cancels."""
    served("examples.greeter:agent examples.reconcile:agent")
    key = reach_harness.home / "keys" / "caller.nk"
    assert ran("examples/plain_pipeline.py", reach_harness.url, str(key)).splitlines() == [
        "Hello, Ada!",
        "kept by REACH_TASK_EVENTS",
        "queued",
        "running",
        "input_required",
        "cancelled",
    ]


def test_a_receiver_of_callbacks(
    served: Served, ran: Ran, reach_harness: Harness, unused_tcp_port: int
) -> None:
    """The platform's callback is genuine, and one that somebody else signed is refused."""
    served("examples.reconcile:agent")
    env = {**shell_env(reach_harness), "REACH_OUTWARD_ALLOW": "127.0.0.1"}
    here = f"http://127.0.0.1:{unused_tcp_port}/"
    with ExitStack() as stack:
        command = platform_command(reach_harness.home, watch_stdin=True)
        platform = stack.enter_context(program(command, env))
        assert READY in platform.stdout.readline()
        secret = ran("reach", "task", "secret").strip()
        command = [sys.executable, "examples/webhook_receiver.py", str(unused_tcp_port), secret]
        receiver = stack.enter_context(program(command, env))
        forged = Webhook("whsec_" + "A" * 32).sign("x", datetime.now(UTC), "{}")
        headers = {"webhook-id": "x", "webhook-timestamp": str(int(time.time())), "webhook-signature": forged}
        for _ in range(100):
            try:
                answer = httpx.post(here, content=b"{}", headers=headers)
                break
            except httpx.ConnectError:
                time.sleep(0.1)
        task = ran("reach", "submit", "ledger.reconcile", "period=2025-03", "--callback", here).splitlines()[
            0
        ]
        ran("reach", "task", "cancel", task)
        told = receiver.stdout.readline()
    assert 401 == answer.status_code
    assert f"reach.task.cancelled {task} None\n" == told


@contextmanager
def program(command: list[str], env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A program of its own, with pipes, ended afterwards."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, cwd=ROOT, env=env, text=True, **pipes)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT_S)


def test_testing_ones_own_agent(ran: Ran) -> None:
    """The example of tests passes as a project's own tests would."""
    said = ran("-m", "pytest", "examples/test_greeter.py", "-q", "-p", "no:cacheprovider")
    assert "2 passed" in said
