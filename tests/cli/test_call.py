"""`reach call` and `reach stream` against a real agent: what is printed where, and with which exit code."""

import json
import signal
from pathlib import Path

import pytest

from reach.cli.exits import Exit
from tests.cli.terminal import Reach, end, wait_until

pytestmark = pytest.mark.usefixtures("shop")


def test_text_is_printed_as_it_is(at_bus: Reach) -> None:
    """A result that is text is one line, without quotes, and nothing else is said."""
    done = at_bus("call", "text.upper", "text=hello there")
    assert (0, "HELLO THERE\n", "") == (done.returncode, done.stdout, done.stderr)


def test_other_results_are_json(at_bus: Reach) -> None:
    """A map is JSON; numbers may be given as text, the agent's model reads them."""
    done = at_bus("call", "order.price", "item=A", "count=3")
    assert {"item": "A", "total": 7.5} == json.loads(done.stdout)


def test_bytes_go_through_a_pipe_unchanged(at_bus: Reach, tmp_path: Path) -> None:
    """A file's bytes come back as bytes, so that `> file` keeps them."""
    content = bytes(range(256)) * 8
    (tmp_path / "data.bin").write_bytes(content)
    done = at_bus("call", "blob.echo", "file=@data.bin")
    assert content == done.stdout.encode("utf-8", "surrogateescape")


def test_three_megabytes_go_both_ways(at_bus: Reach, tmp_path: Path) -> None:
    """What is larger than a message goes through the blob store, unseen (CALL-7)."""
    content = b"x" * (3 * 1024 * 1024)
    (tmp_path / "data.bin").write_bytes(content)
    done = at_bus("call", "blob.echo", "file=@data.bin")
    assert len(content) == len(done.stdout), done.stderr


def test_parameters_from_stdin(at_bus: Reach) -> None:
    """`-` reads a JSON object from stdin."""
    assert "HI\n" == at_bus("call", "text.upper", "-", stdin='{"text": "hi"}').stdout


def test_json_is_the_whole_reply(at_bus: Reach, shop: str) -> None:
    """`--json` prints the reply with how it came about (CALL-10), in one line."""
    done = at_bus("call", "order.price", "item=A", "--json")
    reply = json.loads(done.stdout)
    assert 1 == done.stdout.count("\n")
    assert (True, "shop", shop, 1) == (reply["ok"], reply["provider"], reply["instance"], reply["attempt"])
    assert reply["reach_id"].startswith("rch_")


def test_verbose_tells_the_way_on_stderr(at_bus: Reach, shop: str) -> None:
    """`--verbose` leaves stdout alone."""
    done = at_bus("call", "text.upper", "text=hi", "--verbose")
    assert "HI\n" == done.stdout
    for word in ("provider shop", f"instance {shop}", "attempt 1", " ms", "rch_"):
        assert word in done.stderr


def test_failure_tells_everything_on_stderr(at_bus: Reach) -> None:
    """A failed call says code, reason, message, advice, what is known of execution, and its reach_id."""
    done = at_bus("call", "order.price", "count=3")
    assert (Exit.FAILED, "") == (done.returncode, done.stdout)
    first, *facts = done.stderr.splitlines()
    assert "✘ SCHEMA_INVALID/SCHEMA  item is missing (wanted text)" == first
    assert ["advice", "executed", "reach_id", "next"] == [fact.split()[0] for fact in facts]
    assert "fix_params" in facts[0]
    assert "no: nothing was done" in facts[1]
    assert "reach caps order.price" in facts[3]


def test_failure_as_json_is_the_reply(at_bus: Reach) -> None:
    """`--json` puts a failure on stdout like any reply, and the exit code still tells."""
    done = at_bus("call", "boom", "--json")
    assert (Exit.FAILED, "") == (done.returncode, done.stderr)
    reply = json.loads(done.stdout)
    assert ("UPSTREAM_5XX", "HANDLER_ERROR", "yes") == tuple(
        reply["error"][name] for name in ("code", "reason", "executed")
    )


def test_what_the_agents_code_said_stays_there(at_bus: Reach) -> None:
    """The text of an exception never reaches the caller's terminal (ERR-5)."""
    done = at_bus("call", "boom", "--verbose")
    assert "hunter2" not in done.stdout + done.stderr


def test_nobody_there_is_told_at_once_and_calmly(at_bus: Reach) -> None:
    """A capability that nobody serves is one calm sentence, and the next command to type (ERR-4, CALL-13)."""
    done = at_bus("call", "nobody.home")
    assert Exit.FAILED == done.returncode
    assert "CONN_REFUSED/NO_RESPONDERS  This capability is not available right now." in done.stderr
    assert "reach doctor nobody.home" in done.stderr


@pytest.mark.parametrize(
    "locale",
    [{"REACH_LANG": "zh"}, {"LANG": "zh_CN.UTF-8"}, {"LANG": "en_GB.UTF-8", "LC_ALL": "zh_CN.UTF-8"}],
)
def test_messages_follow_the_language(at_bus: Reach, locale: dict[str, str | None]) -> None:
    """REACH_LANG, else the locale, decides the language of the message (ERR-4)."""
    done = at_bus("call", "nobody.home", env=locale)
    assert "该能力暂时不可用。" in done.stderr


def test_translated_message_keeps_what_only_the_agent_knew(at_bus: Reach) -> None:
    """A message of the agent's own follows the translated sentence."""
    done = at_bus("call", "order.price", "count=3", env={"REACH_LANG": "zh"})
    assert "参数不符合该能力的要求。 item is missing (wanted text)" in done.stderr


def test_translated_message_does_not_repeat_itself_in_english(at_bus: Reach) -> None:
    """What stands in both languages is said in one; near names follow."""
    done = at_bus("call", "order.prise", env={"REACH_LANG": "zh"})
    assert "告知用户。 Nobody serves 'order.prise'; near: order.price." in done.stderr
    assert "This capability is not available" not in done.stderr


def test_timeout_may_have_been_executed(at_bus: Reach) -> None:
    """A call whose time ran out ends with the exit code for "not known whether it was executed"."""
    done = at_bus("call", "nap", "n=1", "seconds=5", "--timeout", "300ms")
    assert Exit.UNSURE == done.returncode
    assert "TIMEOUT/DEADLINE" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["call", "text.upper", "text"], "'text' is not a parameter."),
        (["call", "Text.Upper"], "'text.upper' would do"),
        (["call", "text.upper", "text=x", "--timeout", "soon"], "--timeout 'soon' is not a time."),
        (["call", "text.upper", "text=x", "--priority", "high"], "--priority 'high' is none."),
        (["call", "text.upper", "text=x", "--target", "a b"], "'a-b' would do"),
        (["stream", "count", "to:=x"], "to is not JSON"),
        (["call", "text.upper", "--nonsense"], "No such option: --nonsense"),
    ],
)
def test_wrong_command_lines_are_usage_errors(at_bus: Reach, arguments: list[str], said: str) -> None:
    """What was typed wrong ends with exit code 2 and says what would be right."""
    done = at_bus(*arguments)
    assert (Exit.USAGE, "") == (done.returncode, done.stdout)
    assert said in done.stderr


def test_wrong_command_line_as_json(at_bus: Reach) -> None:
    """With `--json` a program reads the refusal from stdout, too."""
    done = at_bus("call", "text.upper", "text", "--json")
    refusal = json.loads(done.stdout)
    assert (2, False, 2) == (done.returncode, refusal["ok"], refusal["exit"])
    assert "not a parameter" in refusal["message"]


def test_target_and_require_choose(at_bus: Reach) -> None:
    """`--target` and `--require` let only matching agents answer (CALL-12)."""
    assert (
        0 == at_bus("call", "text.upper", "text=x", "--target", "shop", "--require", "tier=gold").returncode
    )
    assert 0 != at_bus("call", "text.upper", "text=x", "--target", "other").returncode
    assert 0 != at_bus("call", "text.upper", "text=x", "--require", "tier=silver").returncode


def test_no_server_is_exit_code_three(reach: Reach) -> None:
    """Where no NATS runs, the command says how to get one."""
    done = reach("call", "text.upper", "text=x")
    assert Exit.NO_CONNECTION == done.returncode
    assert "reach up" in done.stderr


def test_unreachable_server_is_exit_code_three(reach: Reach) -> None:
    """An address at which nothing listens is named (case 20)."""
    done = reach("call", "text.upper", "text=x", "--url", "nats://127.0.0.1:1")
    assert Exit.NO_CONNECTION == done.returncode
    assert "nats://127.0.0.1:1" in done.stderr


def test_stream_prints_parts_as_they_come(at_bus: Reach) -> None:
    """Values are one JSON document a line."""
    assert "0\n1\n2\n" == at_bus("stream", "count", "to=3").stdout


def test_first_part_is_there_before_the_last_is_made(at_bus: Reach) -> None:
    """A part is printed when it comes, not when the stream ends."""
    process = at_bus.start("stream", "count", "to=50", "pause=0.2")
    try:
        assert process.stdout is not None
        assert "0\n" == process.stdout.readline()
        assert None is process.poll()
    finally:
        end(process)


def test_text_parts_are_joined(at_bus: Reach) -> None:
    """Text comes out as the agent wrote it, with a line break at the end."""
    assert "a b c \n" == at_bus("stream", "words", "text=a b c").stdout


def test_stream_as_json_ends_with_how_it_ended(at_bus: Reach) -> None:
    """`--json` gives a line a part, and a last one with ok, the number of parts and the error."""
    lines = [json.loads(line) for line in at_bus("stream", "count", "to=2", "--json").stdout.splitlines()]
    assert [{"part": 1, "data": 0}, {"part": 2, "data": 1}] == lines[:-1]
    assert (True, 2, None) == (lines[-1]["ok"], lines[-1]["parts"], lines[-1]["error"])


def test_stream_that_breaks_keeps_what_came(at_bus: Reach) -> None:
    """What came before the failure is on stdout; the failure is told and is the exit code."""
    done = at_bus("stream", "breaks")
    assert "1\n" == done.stdout
    assert 0 != done.returncode
    assert "✘ UPSTREAM_5XX/" in done.stderr
    assert "hunter2" not in done.stderr


def test_ctrl_c_is_a_quiet_end(at_bus: Reach, tmp_path: Path) -> None:
    """Ctrl-C ends a call with exit code 130 and without a traceback."""
    begun = tmp_path / "begun"
    process = at_bus.start("call", "write", "n=1", f"path={begun}", "seconds=10")
    wait_until(begun.exists)
    process.send_signal(signal.SIGINT)
    out, err = process.finish()
    assert (Exit.INTERRUPTED, "", "") == (process.returncode, out, err)


def test_reader_that_leaves_is_a_quiet_end(at_bus: Reach) -> None:
    """`reach stream … | head` ends without a traceback."""
    process = at_bus.start("stream", "count", "to=200", "pause=0.01")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert Exit.PIPE_CLOSED == process.wait(timeout=20)
    assert "Traceback" not in process.said()


def test_no_colour_without_a_terminal(at_bus: Reach) -> None:
    """Nothing that is piped holds an escape sequence."""
    done = at_bus("call", "nobody.home")
    assert "\x1b" not in done.stdout + done.stderr
