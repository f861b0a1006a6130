"""Parameters as they are typed on the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.cli.exits import Exit, Refusal
from reach.cli.params import duration, json_line, one, pairs, parse
from reach.errors import SchemaInvalid


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("name=Ada", ("name", "Ada")),
        ("name=", ("name", "")),
        ("url=http://x/?a=b:=c", ("url", "http://x/?a=b:=c")),
        ("n:=3", ("n", 3)),
        ("flag:=true", ("flag", True)),
        ("none:=null", ("none", None)),
        ("list:=[1, 2]", ("list", [1, 2])),
        ('map:={"a": {"b": 1}}', ("map", {"a": {"b": 1}})),
        ('bytes:={"$bytes": "aGk="}', ("bytes", b"hi")),
        (r"at=\@home", ("at", "@home")),
        ("mail=a@b", ("mail", "a@b")),
        ("name = Ada", ("name", " Ada")),
        ("text=two\nlines", ("text", "two\nlines")),
    ],
)
def test_each_form_gives_its_value(argument: str, expected: tuple[str, Any]) -> None:
    """`=` is text, `:=` is JSON, and the first sign decides."""
    assert expected == one(argument)


def test_a_file_is_bytes_after_one_sign_and_json_after_the_other(tmp_path: Path) -> None:
    """`key=@file` sends the file's bytes, `key:=@file` what is written in it as JSON."""
    file = tmp_path / "order.json"
    file.write_text('{"item": "A"}')
    assert ("f", b'{"item": "A"}') == one(f"f=@{file}")
    assert ("f", {"item": "A"}) == one(f"f:=@{file}")


def test_an_object_by_itself_is_all_parameters() -> None:
    """What other tools take as a request body is understood as it stands."""
    assert {"a": 1, "b": "2"} == parse(['{"a": 1}', "b=2"])


def test_single_parameters_stand_over_stdin_and_that_over_the_option() -> None:
    """What is more specific wins: `--params`, then `-`, then `key=value`."""
    found = parse(["-", "c=3"], params='{"a": 1, "b": 1, "c": 1}', read_stdin=lambda: b'{"b": 2, "c": 2}')
    assert {"a": 1, "b": 2, "c": "3"} == found


@pytest.mark.parametrize(
    ("arguments", "params", "message"),
    [
        (["name"], None, "'name' is not a parameter."),
        (["=x"], None, "'=x' is not a parameter."),
        (["a=1", "a=2"], None, "a was given twice."),
        (["-", "-"], None, "- was given twice"),
        ([], "[1]", "--params is a list; parameters are one JSON object."),
        (["n:=9999999999999999999999"], None, "n cannot be sent: an integer of more than 64 bits"),
        (["n:=NaN"], None, "n is not JSON that can be sent: NaN has no form in JSON"),
        (["f=@/does/not/exist"], None, "f=@/does/not/exist cannot be read: No such file or directory."),
    ],
)
def test_what_is_wrong_is_named(arguments: list[str], params: str | None, message: str) -> None:
    """A parameter that cannot be read is a usage error which names it."""
    with pytest.raises(Refusal) as caught:
        parse(arguments, params=params, read_stdin=lambda: b"{}")
    assert Exit.USAGE == caught.value.code
    assert caught.value.message.startswith(message)


def test_bad_json_is_shown_with_its_place() -> None:
    """A caret stands below the character at which JSON stops being JSON."""
    with pytest.raises(Refusal) as caught:
        one("order:={'item': 1}")
    assert (
        "order is not JSON: Expecting property name enclosed in double quotes at column 2\n"
        "    {'item': 1}\n"
        "     ^"
    ) == caught.value.message


def test_bad_json_that_was_meant_as_text_is_told_how_to_be_text() -> None:
    """`name:=Ada` is answered with `name=Ada`."""
    with pytest.raises(Refusal) as caught:
        one("name:=Ada")
    assert "Text needs no quotes: name=Ada" == caught.value.fix


@pytest.mark.parametrize("value", ["[1", '{"a": 1', '"Ada', "x" * 1000, "[" * 100_000])
def test_bad_json_that_was_not_meant_as_text_is_not_repeated(value: str) -> None:
    """What was clearly meant as JSON, or is long, is not thrown back as advice; the message stays short."""
    with pytest.raises(Refusal) as caught:
        one(f"name:={value}")
    assert "" == caught.value.fix
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("given", [b"", b" \n\n"])
def test_empty_stdin_is_called_empty(given: bytes) -> None:
    """Nothing on stdin is not "expecting value at line 1"."""
    with pytest.raises(Refusal, match="stdin is empty"):
        parse(["-"], read_stdin=lambda: given)


def test_the_line_break_at_the_end_of_stdin_is_no_line_of_its_own() -> None:
    """A document that ends too soon is shown where it ends, not on the empty line after it."""
    with pytest.raises(Refusal) as caught:
        parse(["-"], read_stdin=lambda: b'{"a": 1\n')
    assert (
        "stdin is not JSON: Expecting ',' delimiter at column 8\n    {\"a\": 1\n           ^"
        == caught.value.message
    )


def test_a_key_that_stands_twice_in_json_is_told() -> None:
    """One of the two would be lost without a word."""
    with pytest.raises(Refusal, match="'a' stands twice in one object"):
        one('x:={"a": 1, "b": {"a": 2}, "a": 3}')


def test_a_number_that_json_cannot_hold_is_named() -> None:
    """1e400 is infinite to Python, and has no form in JSON."""
    with pytest.raises(Refusal, match=r"^x cannot be sent: Infinity has no form in JSON$"):
        one("x:=1e400")


def test_bytes_on_the_command_line_are_sent_to_a_file() -> None:
    """What the shell could not decode is told as what it is."""
    with pytest.raises(Refusal) as caught:
        one("name=\udcff")
    assert ("name is not UTF-8 text.", "Bytes come from a file: name=@FILE") == (
        caught.value.message,
        caught.value.fix,
    )


def test_stdin_that_is_not_text_is_told_at_which_byte() -> None:
    """Bytes that are not UTF-8 are named with their place."""
    with pytest.raises(Refusal) as caught:
        parse(["-"], read_stdin=lambda: b'{"a": "\xff"}')
    assert "stdin is not UTF-8 text: byte 7 is 0xff." == caught.value.message


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 5.0), ("1.5s", 1.5), ("500ms", 0.5), ("2m", 120.0), ("1h", 3600.0), (" 3 ", 3.0)],
)
def test_durations_are_read_with_their_unit(text: str, seconds: float) -> None:
    """A time is seconds unless it says otherwise."""
    assert seconds == duration(text, option="--timeout")


@pytest.mark.parametrize("text", ["", "0", "-1", "soon", "5 parsecs", "inf"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """Zero, negative and unknown times are usage errors."""
    with pytest.raises(Refusal):
        duration(text, option="--timeout")


def test_pairs_of_a_repeatable_option() -> None:
    """`--require lang=zh --require tier=gold` is one map; nothing given is None."""
    assert {"lang": "zh", "tier": "gold"} == pairs(["lang=zh", "tier=gold"], option="--require")
    assert None is pairs([], option="--require")
    with pytest.raises(Refusal):
        pairs(["lang"], option="--require")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"[1]", "a line is one JSON object of parameters, not a list"),
        (b'"x"', "a line is one JSON object of parameters, not a text"),
        (b"oops", "a line is one JSON object of parameters, and this is not JSON: 'oops'"),
        (b'{"a": }', "the JSON body is malformed at line 1, column 7: Expecting value"),
    ],
)
def test_a_line_that_is_no_object_says_what_it_is(line: bytes, message: str) -> None:
    """A bad line of `pipe` is told like a failed call."""
    with pytest.raises(SchemaInvalid) as caught:
        json_line(line)
    assert message == caught.value.message


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text().filter(lambda key: key != "$bytes"), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(value=_JSON)
def test_json_values_come_through_as_they_are(value: Any) -> None:
    """Whatever JSON can say, `:=` says."""
    assert ("v", value) == one("v:=" + json.dumps(value))


@given(text=st.text().filter(lambda text: not text.startswith(("@", "\\@"))))
def test_text_comes_through_as_it_is(text: str) -> None:
    """Text that does not begin with @ needs no quoting."""
    assert ("v", text) == one("v=" + text)
