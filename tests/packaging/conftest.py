"""What packaging tests share: freshly built distributions, and processes that are surely ended."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
END_S = 40.0  # An agent may finish what it runs for 30 s before it leaves.
POLL_S = 0.05

# These speak to the command line; until it is there they have nobody to speak to.
collect_ignore = (
    [] if (ROOT / "reach/cli/main.py").exists() else ["test_installed_wheel.py", "test_compose.py"]
)


class Program:
    """A running command whose output goes to a file, so that it can be awaited and shown."""

    def __init__(self, command: list[str], *, cwd: Path, env: Mapping[str, str], log: Path) -> None:
        self.command = command
        self.log = log
        with log.open("w", encoding="utf-8") as output:
            self.process = subprocess.Popen(
                command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def wait_for(self, text: str, *, within_s: float = 20.0) -> None:
        """Return once `text` was printed; fail when the program ends or time is up before."""
        give_up = time.monotonic() + within_s
        while text not in self.output:
            if self.process.poll() is not None or time.monotonic() > give_up:
                pytest.fail(f"{self.command} did not print {text!r}:\n{self.output}")
            time.sleep(POLL_S)

    def end(self) -> int:
        """Ask the program to end, and return its exit code; kill it only when it does not."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            pytest.fail(f"{self.command} did not end within {END_S} s of SIGTERM:\n{self.output}")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """What starts a command, given `cwd` and `env`; the last one started is the first to be ended."""
    with contextlib.ExitStack() as running:

        def begin(command: list[str], *, cwd: Path, env: Mapping[str, str]) -> Program:
            log = tmp_path / f"{len(list(tmp_path.glob('*.log')))}.log"
            program = Program(command, cwd=cwd, env=env, log=log)
            running.callback(program.end)
            return program

        yield begin


@pytest.fixture
def free_port() -> int:
    """A port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.fixture
def clean_env() -> dict[str, str]:
    """The environment of a user who set nothing of ours, Python's or make's."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("REACH_", "NATS_", "PYTHON", "PYTEST_", "MAKE", "XDG_STATE_HOME"))
    }


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the freshly built source archive and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    built = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT],
        capture_output=True,
        check=False,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder
