"""A newcomer at a fresh machine, who does what a page says: writes its files, types its commands, looks at what comes.

A `python` block that begins with a comment such as `# greeter.py` is a file to write. A `console` block is what the
newcomer sees: after `$ ` what is typed, below it what is printed, `…` for what differs from machine to machine and
`^C` for the keys. `reach up` and `reach run` go on in a terminal of their own until the page is done.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

LIMIT_S = 60.0
LASTING = ("reach up", "reach run")
INTERRUPT = "^C"

_FENCE = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\w+\.py)\n")
# A newcomer has set nothing of ours, and speaks English.
_OURS = ("REACH_", "XDG_", "LC_", "LANG", "PYTHON", "PYTEST", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "NATS_")


@dataclass(frozen=True)
class Command:
    """One line that is typed, and what the page says comes of it."""

    typed: str
    printed: str


def commands_of(block: str) -> list[Command]:
    """Read a console block."""
    pieces = re.split(r"^\$ ", block, flags=re.MULTILINE)
    assert not pieces[0].strip(), f"a console block begins with what is typed: {pieces[0]!r}"
    pairs = [piece.partition("\n") for piece in pieces[1:]]
    return [Command(typed.strip(), printed.strip()) for typed, _, printed in pairs]


def pattern(printed: str) -> re.Pattern[str]:
    """Give what an output must look like; `…` is anything, over lines too."""
    return re.compile(".*?".join(re.escape(part) for part in printed.split("…")), re.DOTALL)


class Newcomer:
    """Follows pages in a folder of their own, with a home of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "work"
        self._folder.mkdir()
        home = folder / "home"
        home.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        # Unbuffered, so that both streams come in the order in which a terminal would show them.
        self._env = kept | {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
        self._lasting: list[tuple[str, subprocess.Popen[bytes], IO[str]]] = []

    def follow(self, page: Path) -> int:
        """Do what the page says; how many commands that were. Raises `AssertionError` where it is not true."""
        count = 0
        for kind, block in _FENCE.findall(page.read_text(encoding="utf-8")):
            if kind == "python":
                if named := _FILE.match(block):
                    (self._folder / named[1]).write_text(block, encoding="utf-8")
                continue
            for command in commands_of(block):
                self._do(command)
                count += 1
        return count

    def leave(self) -> None:
        """Press Ctrl-C in each terminal, the last one first."""
        while self._lasting:
            self._interrupt()

    def _do(self, command: Command) -> None:
        if not command.typed.startswith(LASTING):
            self._run(command)
            return
        said, interrupt, after = command.printed.partition(INTERRUPT)
        screen = self._begin(command.typed)
        self._await(command.typed, said.strip(), screen)
        if interrupt:
            shown = self._interrupt()
            assert pattern(after.strip()).search(shown), f"after ^C of {command.typed}:\n{shown}"

    def _run(self, command: Command) -> None:
        done = subprocess.run(
            ["bash", "-c", command.typed],
            cwd=self._folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        shown = "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())
        assert pattern(command.printed).fullmatch(shown), (
            f"$ {command.typed}\n--- the page says\n{command.printed}\n--- but it prints\n{shown}"
        )

    def _begin(self, typed: str) -> IO[str]:
        screen = tempfile.TemporaryFile("w+", encoding="utf-8", dir=self._folder)  # noqa: SIM115 - closed by _interrupt
        process = subprocess.Popen(
            ["bash", "-c", f"exec {typed}"],
            cwd=self._folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=screen,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._lasting.append((typed, process, screen))
        return screen

    def _await(self, typed: str, said: str, screen: IO[str]) -> None:
        process = self._lasting[-1][1]
        deadline = time.monotonic() + LIMIT_S
        while not pattern(said).search(shown := _shown(screen)):
            ended = process.poll()
            assert ended is None, f"$ {typed}\nended with {ended}:\n{shown}"
            assert time.monotonic() < deadline, (
                f"$ {typed}\n--- the page says\n{said}\n--- but it prints\n{shown}"
            )
            time.sleep(0.05)

    def _interrupt(self) -> str:
        typed, process, screen = self._lasting.pop()
        try:
            process.send_signal(signal.SIGINT)
            process.wait(LIMIT_S)
            return _shown(screen)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(
                f"$ {typed}\nwent on for {LIMIT_S:g} s after ^C:\n{_shown(screen)}"
            ) from None
        finally:
            screen.close()


def _shown(screen: IO[str]) -> str:
    screen.seek(0)
    return screen.read()


@contextmanager
def newcomer(folder: Path) -> Iterator[Newcomer]:
    """A newcomer who closes every terminal in the end."""
    person = Newcomer(folder)
    try:
        yield person
    finally:
        person.leave()
