"""A plain client in another language: JSON from Node against a real agent.

The official NATS client for Node is installed into a folder beside the temporary files, once, and kept there
for later runs. Without Node, or without a registry to install from, the tests are skipped on a user's
machine; in CI, which has both, they fail instead.
"""

import asyncio
import json
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import reach
from reach.bus.keys import Role
from tests.runtime.fleet import Fleet

pytestmark = pytest.mark.needs_program("node", "npm")

PACKAGE = "@nats-io/transport-node"
VERSION = "3.4.0"
INSTALL_S = 120
RUN_S = 30
CLIENT = Path(__file__).with_name("client.mjs")


@pytest.fixture(scope="session")
def modules() -> Path:
    """A folder with the NATS client for Node."""
    folder = Path(tempfile.gettempdir()) / f"reach-tests-node-{os.getuid()}-{VERSION}"
    manifest = folder / "node_modules" / PACKAGE / "package.json"
    if manifest.is_file() and json.loads(manifest.read_text(encoding="utf-8"))["version"] == VERSION:
        return folder
    folder.mkdir(mode=0o700, exist_ok=True)
    command = [
        "npm",
        "install",
        "--no-package-lock",
        "--no-save",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
    ]
    try:
        done = subprocess.run(
            [*command, f"{PACKAGE}@{VERSION}"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
            check=False,
        )
        failure = "" if done.returncode == 0 else done.stderr[-500:]
    except subprocess.TimeoutExpired:
        failure = f"no end after {INSTALL_S} s"
    if failure:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{PACKAGE} cannot be installed: {failure}", pytrace=False)
        pytest.skip(f"{PACKAGE} cannot be installed here: {failure}")
    return folder


def desk() -> reach.Agent:
    agent = reach.Agent("desk", version="2.3.1")

    @agent.capability("desk.greet", description="Greets.", idempotent=True)
    async def greet(name: str, times: int = 1) -> dict[str, Any]:
        return {"text": f"Hello, {name}! " * times, "blob": b"\x00\xff"}

    @agent.capability("desk.count")
    async def count(until: int) -> AsyncIterator[int]:
        for number in range(until):
            yield number

    @agent.capability("desk.fail")
    async def fail(params: dict[str, Any]) -> None:
        raise KeyError("hunter2-canary")

    return agent


async def ask(fleet: Fleet, modules: Path, *requests: tuple[str, Any]) -> list[dict[str, Any]]:
    """Let Node send each body as JSON to its subject; gives what came back."""
    server = fleet.system.server
    work = {
        "servers": server.url,
        "seed": Path(server.keys[Role.CALLER].path).read_text(encoding="utf-8"),
        "requests": [{"subject": subject, "body": body} for subject, body in requests],
    }
    script = modules / "client.mjs"
    script.write_text(CLIENT.read_text(encoding="utf-8"), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        "node",
        str(script),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(RUN_S):
        out, err = await process.communicate(json.dumps(work).encode())
    assert (process.returncode, err.decode()) == (0, "")
    answers: list[dict[str, Any]] = json.loads(out)
    return answers


async def test_plain_json_is_answered_in_kind(fleet: Fleet, modules: Path) -> None:
    """Bare parameters as JSON from Node get a whole JSON reply, in one message."""
    instance = await fleet.serve(desk())
    [answer] = await ask(fleet, modules, ("cap.desk.greet", {"name": "Zoë", "times": 2}))
    reply = answer["json"]
    assert reply["data"] == {"text": "Hello, Zoë! Hello, Zoë! ", "blob": {"$bytes": "AP8="}}
    assert (reply["ok"], reply["error"], reply["attempt"], reply["degraded"]) == (True, None, 1, False)
    assert (reply["provider"], reply["instance"]) == ("desk", instance.name)


async def test_an_envelope_in_json_is_answered_in_kind(fleet: Fleet, modules: Path) -> None:
    """A JSON envelope is understood; its message id comes back, and `{action, params}` is unwrapped."""
    await fleet.serve(desk())
    envelope = {
        "version": 1,
        "message_id": "from-node-1",
        "timeout_ms": 2000,
        "payload": {"action": "greet", "params": {"name": "Ada"}},
    }
    [answer] = await ask(fleet, modules, ("cap.desk.greet", envelope))
    assert (answer["json"]["message_id"], answer["json"]["data"]["text"]) == ("from-node-1", "Hello, Ada! ")


async def test_failures_are_told_in_structure(fleet: Fleet, modules: Path) -> None:
    """A misspelt field, a handler's bug and nobody at all: each is told as what it is, without its insides."""
    await fleet.serve(desk())
    misspelt, broken, nobody = await ask(
        fleet, modules, ("cap.desk.greet", {"nme": "Ada"}), ("cap.desk.fail", {}), ("cap.desk.nobody", {})
    )
    error = misspelt["json"]["error"]
    assert (error["code"], error["reason"], error["executed"]) == ("SCHEMA_INVALID", "SCHEMA", "no")
    assert "unknown field 'nme': did you mean 'name'?" in error["message"]
    error = broken["json"]["error"]
    assert (error["code"], error["reason"], error["executed"]) == ("UPSTREAM_5XX", "HANDLER_ERROR", "yes")
    assert "hunter2" not in json.dumps(broken)
    assert nobody == {"error": "NoRespondersError"}


async def test_a_stream_is_one_list_for_a_plain_client(fleet: Fleet, modules: Path) -> None:
    """Who does not understand frames gets all parts in one message."""
    await fleet.serve(desk())
    [answer] = await ask(fleet, modules, ("cap.desk.count", {"until": 4}))
    assert answer["json"]["data"] == [0, 1, 2, 3]


async def test_the_service_api_answers_node(fleet: Fleet, modules: Path) -> None:
    """`$SRV.INFO`, as the client's own service tools ask for it."""
    instance = await fleet.serve(desk())
    [answer] = await ask(fleet, modules, (f"$SRV.INFO.desk.{instance.name}", None))
    info = answer["json"]
    assert (info["type"], info["version"]) == ("io.nats.micro.v1.info_response", "2.3.1")
    assert [endpoint["subject"] for endpoint in info["endpoints"]] == [
        "cap.desk.greet",
        "cap.desk.count",
        "cap.desk.fail",
    ]
