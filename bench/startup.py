"""How long one waits before anything happens: importing the package, and `reach up` (behaviour SPEED-6)."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Final

from bench.stage import environment

IMPORT_LIMIT_MS: Final = 250.0
UP_LIMIT_S: Final = 3.0

_TIMES: Final = 5
_PATIENCE_S: Final = 20.0
_STOP_S: Final = 15.0
_TIMED: Final = "from time import perf_counter as now; began = now(); {}; print((now() - began) * 1000)"


@dataclass(frozen=True, slots=True)
class Startup:
    """What starting takes.

    Attributes:
        import_ms: `import reach` in a fresh interpreter.
        names_ms: The same with the names that a program uses, which are imported on first use.
        up_s: From starting `reach up` until it says that it is ready; None where it did not.
        note: Why not.
    """

    import_ms: float
    names_ms: float
    up_s: float | None
    note: str = ""


def measure_startup() -> Startup:
    """Start everything a few times; medians."""
    with tempfile.TemporaryDirectory(prefix="reach-bench-") as folder:
        env = environment(Path(folder))
        imports = [_timed("import reach", env) for _ in range(_TIMES)]
        names = [_timed("import reach; reach.Agent; reach.connect", env) for _ in range(_TIMES)]
        try:
            up_s = median(_up(Path(folder, f"up-{number}"), env) for number in range(3))
        except UpFailed as failed:
            return Startup(median(imports), median(names), None, str(failed))
    return Startup(median(imports), median(names), up_s)


class UpFailed(Exception):
    """`reach up` did not become ready."""


def _timed(statement: str, env: dict[str, str]) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _TIMED.format(statement)],
        env=env,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=True,
    )
    return float(done.stdout)


def _up(home: Path, env: dict[str, str]) -> float:
    command = [sys.executable, "-m", "reach.cli.main", "up", "--home", str(home), "--port", "0"]
    began = time.monotonic()
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        if process.stdout is None:
            raise RuntimeError("`reach up` was started without its pipe")
        _wait_for(process.stdout, b"ready", deadline=began + _PATIENCE_S)
        return time.monotonic() - began
    finally:
        _end(process, command)


def _wait_for(stream: IO[bytes], word: bytes, *, deadline: float) -> None:
    said = b""
    os.set_blocking(stream.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while word not in said.lower():
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise UpFailed(f"`reach up` was not ready within {_PATIENCE_S:.0f} s")
            chunk = stream.read(4096)
            if not chunk:
                raise UpFailed(
                    f"`reach up` ended before it was ready: {said.decode('utf-8', 'replace').strip()}"
                )
            said += chunk


def _end(process: subprocess.Popen[bytes], command: Sequence[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise UpFailed(f"{' '.join(command[2:])} did not end within {_STOP_S:.0f} s of SIGTERM") from None
    finally:
        if process.stdout is not None:
            process.stdout.close()
