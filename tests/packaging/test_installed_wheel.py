"""The wheel in an empty environment, beside a user's folder that has `actors` and `schemas` of its own.

The user's agent must get the user's packages, and the platform process ours, whatever the current folder
and PYTHONPATH hold. The environment sees the libraries of the one that runs the tests, but not the
checkout: a path file is followed to a folder, never to the path files in that folder.
"""

import json
import subprocess
import sys
import sysconfig
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

USER_FILES = {
    "actors/__init__.py": '"""The cast of a theatre."""\n\nCAST = ["Prospero", "Ariel"]\n',
    "actors/sentinel/__init__.py": "",
    "actors/sentinel/actor.py": 'raise RuntimeError("the platform loaded the actors of the user")\n',
    "schemas/__init__.py": """\
        from pydantic import BaseModel

        class Play(BaseModel):
            title: str
        """,
    "theatre.py": """\
        import asyncio
        from pathlib import Path

        import reach
        from actors import CAST
        from schemas import Play

        agent = reach.Agent("theatre")

        @agent.capability("play.cast", idempotent=True)
        async def cast(params: Play) -> dict[str, object]:
            return {"title": params.title, "cast": CAST}

        @agent.capability("play.perform", timeout_s=60)
        async def perform(params: Play) -> None:
            Path("curtain").touch()
            await asyncio.sleep(60)
        """,
}


@pytest.fixture(scope="module")
def programs(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment in which the wheel was installed."""
    env = tmp_path_factory.mktemp("env")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True)
    (wheel,) = dist.glob("*.whl")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            env,
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            wheel,
        ],
        check=True,
    )
    (site,) = env.glob("lib/python*/site-packages")
    libraries = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (site / "libraries.pth").write_text("\n".join(libraries) + "\n", encoding="utf-8")
    return env / "bin"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder with packages that are called as ours are."""
    user = tmp_path / "user"
    for name, text in USER_FILES.items():
        path = user / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    return user


def call(programs: Path, capability: str, *, cwd: Path, env: dict[str, str]) -> dict[str, Any]:
    answer = subprocess.run(
        [programs / "reach", "call", capability, "title=Tempest", "--json"],
        cwd=cwd,
        env=env,
        capture_output=True,
        check=False,
        text=True,
    )
    assert answer.stdout, answer.stderr
    reply: dict[str, Any] = json.loads(answer.stdout)
    return reply


def test_the_wheel_is_what_is_imported(programs: Path, folder: Path, clean_env: dict[str, str]) -> None:
    """In the environment, `reach` is the installed one, not the checkout: else nothing here is proof."""
    where = subprocess.run(
        [programs / "python", "-c", "import reach; print(reach.__file__)"],
        cwd=folder,
        env=clean_env,
        capture_output=True,
        check=True,
        text=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(programs.parent)


def test_help_works_from_any_folder(programs: Path, folder: Path, clean_env: dict[str, str]) -> None:
    """`reach --help` needs no server, no state folder and no extra."""
    shown = subprocess.run(
        [programs / "reach", "--help"], cwd=folder, env=clean_env, capture_output=True, check=False, text=True
    )
    assert (0, "") == (shown.returncode, shown.stderr)
    assert "doctor" in shown.stdout


def test_neither_folder_nor_path_shadows_an_actor(
    programs: Path,
    folder: Path,
    tmp_path: Path,
    free_port: int,
    clean_env: dict[str, str],
    start: Callable[..., Any],
) -> None:
    """The user's agent serves with its own packages, while our sentinel tells of its death."""
    env = clean_env | {"REACH_HOME": str(tmp_path / "home"), "PYTHONPATH": str(folder)}
    reach = str(programs / "reach")
    start([reach, "up", "--port", str(free_port)], cwd=folder, env=env).wait_for("ready")
    agent = start([reach, "run", "theatre:agent"], cwd=folder, env=env)

    give_up = time.monotonic() + 20
    while not (reply := call(programs, "play.cast", cwd=folder, env=env))["ok"]:
        if time.monotonic() > give_up:
            pytest.fail(f"no answer: {reply}\n{agent.output}")
    assert {"title": "Tempest", "cast": ["Prospero", "Ariel"]} == reply["data"]

    holding = start([reach, "call", "play.perform", "title=Tempest", "--json"], cwd=folder, env=env)
    while not (folder / "curtain").exists():
        if time.monotonic() > give_up:
            pytest.fail(f"the agent never started: {holding.output}\n{agent.output}")
        time.sleep(0.05)
    agent.process.kill()
    holding.process.wait(10)  # Far below the 60 s of the call: nobody but the sentinel can have told.
    error = json.loads(holding.output)["error"]
    assert ("OUTCOME_UNKNOWN", "INSTANCE_GONE") == (error["reason"], error["cause"])
