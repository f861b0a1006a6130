"""What the command line says about itself: groups, examples, exit codes, completion; and that it says so at once."""

import itertools
import os
import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reach.cli import (
    bench,
    call,
    caps,
    doctor,
    drain,
    exits,
    outcomes,
    pipe,
    ps,
    route,
    route_look,
    run,
    schema,
    submit,
    task,
    up,
)
from reach.cli.exits import Exit
from reach.cli.main import app
from tests.cli.terminal import COMMAND, environment

ROOT = Path(__file__).resolve().parents[2]
COMMANDS: dict[tuple[str, ...], Sequence[tuple[str, str]]] = {
    ("up",): up.EXAMPLES,
    ("run",): run.EXAMPLES,
    ("call",): call.CALL_EXAMPLES,
    ("stream",): call.STREAM_EXAMPLES,
    ("submit",): submit.EXAMPLES,
    **{("task", name): shown for name, _, shown in task.COMMANDS},
    ("pipe",): pipe.EXAMPLES,
    ("ps",): ps.EXAMPLES,
    ("caps",): caps.EXAMPLES,
    **{("outcomes", name): shown for name, _, shown in outcomes.COMMANDS},
    ("route", "show"): route_look.SHOW_EXAMPLES,
    ("route", "explain"): route_look.EXPLAIN_EXAMPLES,
    ("route", "set"): route.SET_EXAMPLES,
    ("route", "canary"): route.CANARY_EXAMPLES,
    ("route", "open"): route.OPEN_EXAMPLES,
    ("route", "close"): route.CLOSE_EXAMPLES,
    ("route", "disable"): route.DISABLE_EXAMPLES,
    ("route", "resync"): route.RESYNC_EXAMPLES,
    ("drain",): drain.EXAMPLES,
    ("doctor",): doctor.EXAMPLES,
    ("bench",): bench.EXAMPLES,
    ("schema", "export"): schema.EXPORT_EXAMPLES,
    ("schema", "show"): schema.SHOW_EXAMPLES,
}
WIDE = {"COLUMNS": "160", "TERMINAL_WIDTH": "160"}


def shown(*arguments: str) -> str:
    """The help, as text in one space-separated line."""
    result = CliRunner().invoke(app, [*arguments, "--help"], env=WIDE)
    assert 0 == result.exit_code, result.output
    return re.sub(r"[\s│╭╮╰╯─]+", " ", result.output)


def test_help_groups_the_commands() -> None:
    """`reach --help` lists every command under the heading of what it is for."""
    text = shown()
    headings = (" Serve ", " Call ", " Look ", " Steer ", " Check and measure ")
    found = [text.index(heading) for heading in headings]
    assert sorted(found) == found
    for command in {names[0] for names in COMMANDS}:
        assert f" {command} " in text


def test_help_and_documentation_tell_every_exit_code() -> None:
    """The codes stand in one table, which the help and docs/reference/cli.md repeat word for word."""
    text = shown()
    page = (ROOT / "docs/reference/cli.md").read_text()
    for code, meaning in exits.table():
        assert f" {code} {meaning}" in text
        assert f"| {code} | {meaning} |" in page.replace("\\|", "|")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_examples(command: tuple[str, ...]) -> None:
    """The help of each command ends with examples, one with a sentence each."""
    text = shown(*command)
    assert COMMANDS[command]
    for about, example in COMMANDS[command]:
        assert f"# {about}" in text
        assert re.sub(r"\s+", " ", example) in text


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_examples_use_options_that_exist(command: tuple[str, ...]) -> None:
    """No example shows an option that its command does not have."""
    text = shown(*command)
    for _, example in COMMANDS[command]:
        own = example.split("|")[-1 if command == ("call",) and example.startswith("echo") else 0]
        for option in re.findall(r"(?<=\s)--?[a-z][a-z-]*", own):
            assert re.search(rf"{re.escape(option)}\b", text.split("Examples")[0]), (example, option)


@pytest.mark.parametrize("command", [(), *COMMANDS], ids=" ".join)
def test_help_speaks_no_python(command: tuple[str, ...]) -> None:
    """No type of Python stands beside a flag or an argument, as if the flag took a value."""
    text = shown(*command)
    assert [] == re.findall(r"<[a-z][a-z\[\] ]*>", text)
    assert "[[" not in text


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_breaks_lines_where_the_terminal_ends(command: tuple[str, ...]) -> None:
    """Prose fills the width: where the source breaks its lines nobody needs to know."""
    result = CliRunner().invoke(app, [*command, "--help"], env=WIDE)
    prose = result.output.split("Usage:")[1].split("╭─")[0]
    paragraphs = [part.strip().splitlines() for part in re.split(r"\n\s*\n", prose)[1:] if part.strip()]
    assert paragraphs
    for lines in paragraphs:
        for line, following in itertools.pairwise(lines):
            assert len(line.rstrip()) + 1 + len(following.split()[0]) > 158


def test_ctrl_c_while_modules_are_imported_is_quiet() -> None:
    """The first tenths of a second are imports: a Ctrl-C then shows no traceback either."""
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'reach.cli.main':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from reach.cli.start import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True, cwd=ROOT)
    assert (Exit.INTERRUPTED, "", "") == (done.returncode, done.stdout, done.stderr)


def test_every_command_speaks_json() -> None:
    """`--json` is an option of each command."""
    for command in COMMANDS:
        assert " --json " in shown(*command)


def test_documentation_names_every_command_and_option() -> None:
    """docs/reference/cli.md has each command and each of its options."""
    page = (ROOT / "docs/reference/cli.md").read_text()
    for command in COMMANDS:
        assert f"reach {' '.join(command)}" in page
        for option in re.findall(r" (--[a-z][a-z-]+) ", shown(*command).split("Examples")[0]):
            assert option in page, (command, option)


def test_misspelt_command_is_answered_with_the_nearest() -> None:
    """`reach caal` is a usage error that knows `call`."""
    result = CliRunner().invoke(app, ["caal"])
    assert Exit.USAGE == result.exit_code
    assert "Did you mean 'call'?" in result.output


def test_no_arguments_show_the_help() -> None:
    """`reach` alone shows what there is."""
    result = CliRunner().invoke(app, [])
    assert "Start with reach up" in result.output


def test_version_is_told() -> None:
    """`reach --version` names the program and its version."""
    result = CliRunner().invoke(app, ["--version"])
    assert re.fullmatch(r"reach \d+\.\d+\.\d+\n", result.output)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_offered(shell: str, tmp_path: Path) -> None:
    """The shell's completion lists the commands (and asks nobody for it)."""
    variables = {
        "bash": {"COMP_WORDS": "reach st", "COMP_CWORD": "1", "_REACH_COMPLETE": "complete_bash"},
        "zsh": {"_TYPER_COMPLETE_ARGS": "reach st", "_REACH_COMPLETE": "complete_zsh"},
        "fish": {
            "_TYPER_COMPLETE_ARGS": "reach st",
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            "_REACH_COMPLETE": "complete_fish",
        },
    }
    done = subprocess.run(
        COMMAND,
        env=environment(HOME=str(tmp_path), **variables[shell]),
        capture_output=True,
        check=False,
        text=True,
    )
    assert "stream" in done.stdout
    assert "call" not in done.stdout


def test_help_imports_neither_nats_nor_pydantic() -> None:
    """What a command needs is imported when it runs, so that help and completion answer at once."""
    code = (
        "import sys, reach.cli.main; "
        "print(sorted({'nats', 'pydantic', 'rich', 'msgpack'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True, cwd=ROOT)
    assert "[]" == done.stdout.strip()


def test_help_takes_less_than_half_a_second() -> None:
    """`reach --help` needs less than 0.5 s of processor time (slack for the machine's speed: twice that)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*COMMAND, "--help"], stdout=subprocess.DEVNULL, check=True, env=dict(os.environ))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime) < 1.0
