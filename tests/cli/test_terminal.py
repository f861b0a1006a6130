"""What people see on a terminal, and only there: colours, a progress bar, tables that are redrawn in place."""

import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.terminal import COMMAND, Reach

pytestmark = pytest.mark.usefixtures("shop")


def on_terminal(
    reach: Reach,
    *arguments: str,
    env: dict[str, str | None] | None = None,
    stdin: Path | None = None,
    until: Callable[[str], bool] | None = None,
) -> str:
    """Run it with stdout and stderr on a terminal; what was seen there. With `until`, Ctrl-C when that is so."""
    ours, theirs = pty.openpty()
    changed = reach.changed({"TERM": "xterm-256color", **(env or {})})
    with (stdin or Path(os.devnull)).open("rb") as source:
        process = subprocess.Popen(
            [*COMMAND, *arguments], env=changed, cwd=reach.cwd, stdin=source, stdout=theirs, stderr=theirs
        )
    os.close(theirs)
    seen = b""
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            if not select.select([ours], [], [], 0.2)[0]:
                continue
            try:
                piece = os.read(ours, 65536)
            except OSError:  # The terminal's other end is closed: the process has ended.
                break
            if not piece:
                break
            seen += piece
            if until is not None and until(seen.decode("utf-8", "replace")):
                process.send_signal(signal.SIGINT)
                until = None
        assert time.monotonic() < deadline, f"it does not end; seen so far: {seen!r}"
        process.wait(20)
    finally:
        os.close(ours)
        process.kill()
        process.wait()
    return seen.decode("utf-8", "replace")


def test_failures_are_coloured(at_bus: Reach) -> None:
    """On a terminal the sign of a failure is red."""
    assert "\x1b[1;31m✘" in on_terminal(at_bus, "call", "nobody.home")


def test_no_color_is_obeyed(at_bus: Reach) -> None:
    """NO_COLOR turns colours off on a terminal, too."""
    seen = on_terminal(at_bus, "call", "nobody.home", env={"NO_COLOR": "1"})
    assert "✘" in seen
    assert "\x1b[1;31m" not in seen
    assert "\x1b[31m" not in seen


def test_results_are_indented(at_bus: Reach) -> None:
    """On a terminal --json is indented for eyes."""
    assert "\r\n  " in on_terminal(at_bus, "call", "order.price", "item=A", "--json", env={"NO_COLOR": "1"})


def test_bytes_are_not_thrown_at_a_terminal(at_bus: Reach, tmp_path: Path) -> None:
    """A result of bytes is counted, and how to keep it is said."""
    (tmp_path / "data.bin").write_bytes(b"\x00\x1b[2J" * 100)
    seen = on_terminal(at_bus, "call", "blob.echo", "file=@data.bin")
    assert "500 bytes. To keep them: reach call … > FILE" in seen
    assert "\x00" not in seen


def test_pipe_shows_a_bar(at_bus: Reach, tmp_path: Path) -> None:
    """On a terminal `reach pipe` shows how far it is, and leaves only the summary."""
    source = tmp_path / "in.jsonl"
    source.write_text("".join(f'{{"n": {n}, "seconds": 0.05}}\n' for n in range(100)))
    seen = on_terminal(at_bus, "pipe", "nap", "--out", "out.jsonl", stdin=source)
    assert "━" in seen
    assert "100 lines: 100 ok, 0 failed" in seen


def some_lines_are_done(seen: str) -> bool:
    """Whether the bar is somewhere in the middle."""
    return re.search(r" [2-9]\d lines", seen) is not None


def test_pipe_knows_how_much_is_done(at_bus: Reach, tmp_path: Path) -> None:
    """The bar counts lines that are answered, not those that were read: it is not full from the start."""
    source = tmp_path / "in.jsonl"
    source.write_text("".join(f'{{"n": {n}, "seconds": 0.05}}\n' for n in range(200)))
    seen = on_terminal(at_bus, "pipe", "nap", "-n", "2", stdin=source, until=some_lines_are_done)
    colour_of_what_is_left = "\x1b[38;5;237m"
    assert f"{colour_of_what_is_left}━" in seen


def test_interrupted_pipe_says_so_on_a_line_of_its_own(at_bus: Reach, tmp_path: Path) -> None:
    """The bar is gone before anything else is said."""
    source = tmp_path / "in.jsonl"
    source.write_text("".join(f'{{"n": {n}, "seconds": 0.05}}\n' for n in range(200)))
    seen = on_terminal(
        at_bus,
        "pipe",
        "nap",
        "-n",
        "2",
        "--out",
        "cut.jsonl",
        stdin=source,
        until=some_lines_are_done,
    )
    last = [line for line in seen.replace("\r", "\n").split("\n") if "Interrupted after" in line]
    assert ["Interrupted after"] == [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line)[:17] for line in last]


def test_watch_redraws_until_ctrl_c(at_bus: Reach) -> None:
    """`--watch` on a terminal draws the table in place, and Ctrl-C ends it quietly."""
    seen = on_terminal(at_bus, "ps", "--watch", until=lambda seen: seen.count("INSTANCE") >= 2)
    assert "shop" in seen
    assert "Traceback" not in seen
