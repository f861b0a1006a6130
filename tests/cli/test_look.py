"""`reach ps`, `reach caps`, `reach schema` and `reach bench`: tables for people, JSON for programs."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from reach.cli.exits import Exit
from reach.cli.offer import example_call, parameters
from reach.cli.output import age, language, limit_text
from tests.cli.terminal import Reach, end, server, wait_for_line


@pytest.mark.usefixtures("shop")
class TestWithAnAgent:
    """Where an agent serves."""

    def test_ps_shows_each_instance(self, at_bus: Reach, shop: str) -> None:
        """A line an instance; what only a supervisor knows is left open, and that there is none is said."""
        at_bus("call", "text.upper", "text=x")
        done = at_bus("ps")
        header, *lines = done.stdout.splitlines()
        expected = "INSTANCE VERSION STATE WEIGHT TICKETS IN WORK CPU UP CALLS ERRORS SERVES"
        assert expected == " ".join(header.split())
        (line,) = [line for line in lines if shop in line]
        assert [shop, "1.2.0", "-", "-", "-", "0", "-"] == line.split()[:7]
        assert "No supervisor answers" in done.stderr

    def test_ps_as_json(self, at_bus: Reach, shop: str) -> None:
        """Programs get every instance with its figures."""
        before = {one["instance"]: one for one in json.loads(at_bus("ps", "--json").stdout)}[shop]
        at_bus("call", "text.upper", "text=x")
        after = {one["instance"]: one for one in json.loads(at_bus("ps", "--json").stdout)}[shop]
        assert 1 == after["requests"] - before["requests"]
        assert after["uptime_s"] > before["uptime_s"]
        assert ("shop", "sales", {"tier": "gold"}) == (after["agent"], after["owner"], after["labels"])

    def test_caps_lists_what_can_be_called(self, at_bus: Reach) -> None:
        """A line a capability and agent: its kind, whether it is idempotent, what it does."""
        lines = at_bus("caps").stdout.splitlines()
        (price,) = [line for line in lines if line.startswith("order.price")]
        (count,) = [line for line in lines if line.startswith("count")]
        assert price.split()[:7] == ["order.price", "request", "shop", "1", "10", "-", "-"]
        assert "yes" in price
        assert "Price of an order." in price
        assert count.split()[:3] == ["count", "stream", "shop"]

    def test_one_capability_shows_its_parameters(self, at_bus: Reach) -> None:
        """Name, what it takes, whether it is required, its default and what it is; and a call to copy."""
        shown = at_bus("caps", "order.price").stdout
        for words in (
            "item text required Article number",
            "count a whole number default 1 How many",
            "due a date such as 2025-01-31 or null optional",
            "reach call order.price item=A-17",
        ):
            assert words in " ".join(shown.split())

    def test_the_call_that_is_shown_works(self, at_bus: Reach) -> None:
        """The example at the foot can be typed as it stands."""
        words = shlex.split(at_bus("caps", "order.price").stdout.splitlines()[-1])
        assert 0 == at_bus(*words[1:]).returncode

    def test_one_capability_as_json_has_its_schema(self, at_bus: Reach) -> None:
        """Programs get the schemas."""
        told = json.loads(at_bus("caps", "order.price", "--json").stdout)
        assert ["item"] == told["input_schema"]["required"]
        assert (True, ["shop"]) == (told["idempotent"], told["agents"])

    def test_unknown_capability_is_answered_with_the_nearest(self, at_bus: Reach) -> None:
        """`reach caps order.prise` knows order.price."""
        done = at_bus("caps", "order.prise")
        assert (Exit.FAILED, True) == (done.returncode, "Near it: order.price." in done.stderr)

    def test_watch_as_json_is_a_document_a_line(self, at_bus: Reach) -> None:
        """`--watch --json` gives a line each second until it is ended."""
        process = at_bus.start("ps", "--watch", "--json")
        try:
            for _ in range(2):
                assert any(one["agent"] == "shop" for one in json.loads(wait_for_line(process, "[")))
        finally:
            end(process)

    def test_reader_that_leaves_ends_watching_quietly(self, at_bus: Reach) -> None:
        """`reach ps --watch | head` ends as every other command whose reader left."""
        process = at_bus.start("ps", "--watch")
        wait_for_line(process, "shop")
        assert process.stdout is not None
        process.stdout.close()
        assert Exit.PIPE_CLOSED == process.wait(timeout=20)
        assert "Traceback" not in process.said()


def test_nobody_there_is_said(reach: Reach, tmp_path: Path) -> None:
    """Where no agent is, people are told how to start one, and programs get an empty list."""
    with server(tmp_path / "home"):
        assert "reach run module:agent" in reach("ps").stdout
        assert "reach run module:agent" in reach("caps").stdout
        assert [] == json.loads(reach("ps", "--json").stdout)
        assert [] == json.loads(reach("caps", "--json").stdout)


def test_no_server_is_exit_code_three(reach: Reach) -> None:
    """Where no NATS runs, looking says so."""
    assert Exit.NO_CONNECTION == reach("ps").returncode


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("reach call text.", ["text.upper"]),
        ("reach call text.upper --target sh", ["shop"]),
        ("reach caps boo", ["boom"]),
    ],
)
def test_completion_offers_what_is_there(at_bus: Reach, words: str, expected: list[str]) -> None:
    """TAB completes names of capabilities and agents."""
    variables = {"_REACH_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert expected == at_bus(env=variables).stdout.split()


def test_completion_is_silent_where_nothing_is(reach: Reach) -> None:
    """Without a server TAB offers nothing, and says nothing."""
    done = reach(env={"_REACH_COMPLETE": "complete_bash", "COMP_WORDS": "reach call x", "COMP_CWORD": "2"})
    assert ("", "") == (done.stdout.strip(), done.stderr)


# ---------------------------------------------------------------------------------------------- pure


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (None, "reach call x"),
        ({"type": "object", "properties": {}}, "reach call x"),
        ({"properties": {"n": {"type": "integer", "minimum": 3}}, "required": ["n"]}, "reach call x n:=3"),
        (
            {"properties": {"b": {"type": "string", "format": "binary"}}, "required": ["b"]},
            "reach call x b=@FILE",
        ),
        (
            {"properties": {"d": {"type": "string", "format": "date"}}, "required": ["d"]},
            "reach call x d=2025-01-31",
        ),
        ({"properties": {"k": {"enum": ["a b", "c"]}}, "required": ["k"]}, "reach call x 'k=a b'"),
        (
            {"properties": {"l": {"type": "array", "items": {"type": "integer"}}}, "required": ["l"]},
            "reach call x l:='[1]'",
        ),
        (
            {
                "$ref": "#/$defs/T",
                "$defs": {
                    "T": {"properties": {"o": {"$ref": "#/$defs/O"}}, "required": ["o"]},
                    "O": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
                },
            },
            """reach call x o:='{"a": true}'""",
        ),
        (
            {"properties": {"a": {"anyOf": [{"type": "null"}, {"type": "string"}]}}, "required": ["a"]},
            "reach call x a=text",
        ),
    ],
)
def test_example_call_has_the_form_that_the_schema_wants(
    schema: dict[str, Any] | None, expected: str
) -> None:
    """The call to copy is made of the required parameters, quoted for the shell."""
    assert expected == example_call("x", "request", parameters(schema), schema)


def test_recursive_schema_ends() -> None:
    """A schema that holds itself still gives an example."""
    schema = {
        "$ref": "#/$defs/N",
        "$defs": {
            "N": {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}, "required": ["next"]},
        },
    }
    assert "next" in example_call("x", "request", parameters(schema), schema)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (12.9, "12s"), (303, "5m 3s"), (7500, "2h 5m"), (7200, "2h"), (273600, "3d 4h")],
)
def test_age_is_told_in_two_units(seconds: float, text: str) -> None:
    """A span of time is told as people say it."""
    assert text == age(seconds)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "REACH_LANG": "en"}, "en"),
        ({"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"LC_MESSAGES": "zh_TW", "LANG": "de_DE"}, "zh"),
    ],
)
def test_language_is_found_as_posix_orders_it(env: dict[str, str], expected: str) -> None:
    """REACH_LANG, LC_ALL, LC_MESSAGES, LANG: the first that is set."""
    assert expected == language(env)


def test_limit_says_whose_how_much_and_when_it_resets() -> None:
    """A refusal names the limit, whose it is, how much is used, when it resets (ERR-6)."""
    limit = {"name": "max_concurrency", "owner": "shop", "used": 64, "allowed": 64, "resets_in_ms": 1500}
    assert "max_concurrency of shop: 64 of 64 used, resets in 1.5 s" == limit_text(limit)


# ---------------------------------------------------------------------------------------- schema and bench


def test_schema_show_lists_and_prints(reach: Reach) -> None:
    """Without a name the messages are listed; with one its schema is printed."""
    assert {"envelope", "reply", "asyncapi", "faults"} <= set(
        json.loads(reach("schema", "show", "--json").stdout)
    )
    envelope = json.loads(reach("schema", "show", "envelope").stdout)
    assert "schema://reach/envelope@1" == envelope["$id"]


def test_schema_show_knows_the_nearest(reach: Reach) -> None:
    """A misspelt message is answered with the one that was meant."""
    done = reach("schema", "show", "envelop")
    assert (Exit.USAGE, True) == (done.returncode, "Did you mean envelope?" in done.stderr)


def test_schema_export_writes_the_contract(reach: Reach, tmp_path: Path) -> None:
    """All documents are written, and told."""
    told = json.loads(reach("schema", "export", "contract", "--json").stdout)
    assert {path.name for path in (tmp_path / "contract").iterdir()} == {
        Path(name).name for name in told["files"]
    }
    assert (tmp_path / "contract/asyncapi.json").is_file()


def test_schema_export_into_what_is_no_folder(reach: Reach, tmp_path: Path) -> None:
    """A folder that cannot be is a set-up error."""
    (tmp_path / "file").touch()
    assert Exit.SETUP == reach("schema", "export", "file").returncode


def test_bench_compares_with_bare_nats(reach: Reach) -> None:
    """`reach bench` measures both ways in one run, with a server of its own where none runs, and fails no call."""
    told = json.loads(reach("bench", "--calls", "300", "--concurrency", "16", "--json").stdout)
    assert (300, 0, 300, 0) == tuple(
        told[way][name] for way in ("bare", "reach") for name in ("calls", "failed")
    )
    assert told["ratio"] > 0


def test_bench_for_people(at_bus: Reach) -> None:
    """People get a table and the ratio in a sentence."""
    shown = at_bus("bench", "--calls", "200", "--rounds", "1").stdout
    assert "nats-py request" in shown
    assert "of a bare request (64 at a time, 200 bytes)." in shown
