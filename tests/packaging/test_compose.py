"""docker-compose.yml starts what it says: its own commands, run as processes.

No Docker engine is needed; only addresses and folders are put in place of the containers' own.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
REACH = str(Path(sys.executable).with_name("reach"))


@pytest.fixture
def services() -> dict[str, Any]:
    """The services by name, as docker-compose.yml has them."""
    composed: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    found: dict[str, Any] = composed["services"]
    return found


@pytest.fixture
def here(tmp_path: Path, free_port: int) -> Callable[[str], str]:
    """Puts this machine's addresses and folders in place of the containers'."""
    stands_for = {
        "0.0.0.0": "127.0.0.1",  # noqa: S104 - what is replaced
        "platform": "127.0.0.1",
        "4222": str(free_port),
        "/state": str(tmp_path / "state"),
    }

    def replace(text: str) -> str:
        for theirs, ours in stands_for.items():
            text = text.replace(theirs, ours)
        return text

    return replace


def test_nothing_is_published_beyond_this_machine(services: dict[str, Any]) -> None:
    """Published ports are bound to loopback: opening them further is the operator's own decision."""
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert published
    assert [] == [port for port in published if not port.startswith("127.0.0.1:")]


def test_dockerfile_copies_what_exists() -> None:
    """Each file that the image takes from the checkout is there and is not held back by .dockerignore."""
    copies = [
        line.split()[1:-1]
        for line in (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
        if line.startswith("COPY ")
    ]
    named = {name for names in copies for name in names}
    ignored = set((ROOT / ".dockerignore").read_text(encoding="utf-8").split())
    assert set() == {name for name in named if not (ROOT / name).exists() or name in ignored}


def test_services_start_serve_and_end(
    services: dict[str, Any],
    here: Callable[[str], str],
    clean_env: dict[str, str],
    start: Callable[..., Any],
) -> None:
    """The platform is healthy, three agents serve, a call is answered, and SIGTERM ends all in order."""

    def env_of(name: str) -> dict[str, str]:
        return clean_env | {key: here(value) for key, value in services[name]["environment"].items()}

    def command_of(name: str) -> list[str]:
        return [REACH, *(here(word) for word in services[name]["command"])]

    def ask(*words: str, service: str = "cli") -> Any:
        answer = subprocess.run(
            [REACH, *words, "--json"],
            cwd=ROOT,
            env=env_of(service),
            capture_output=True,
            check=False,
            text=True,
        )
        assert 0 == answer.returncode, answer.stdout + answer.stderr
        return json.loads(answer.stdout)

    platform = start(command_of("platform"), cwd=ROOT, env=env_of("platform"))
    platform.wait_for("ready")
    check = services["platform"]["healthcheck"]["test"]
    assert ["CMD", "reach", "doctor", "--json"] == check
    ask("doctor", service="platform")

    replicas = services["invoices"]["deploy"]["replicas"]
    agents = [start(command_of("invoices"), cwd=ROOT, env=env_of("invoices")) for _ in range(replicas)]
    for agent in agents:
        agent.wait_for("invoice.extract")
    assert replicas == len(ask("ps"))
    sample = min((ROOT / "examples/invoices/samples").glob("*.xml"))
    assert ask("call", "invoice.extract", f"content=@{sample}")["ok"]

    assert [0] * replicas == [agent.end() for agent in agents]
    assert 0 == platform.end()
