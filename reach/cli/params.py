r"""Parameters as they are typed: `key=value`, `key:=json`, `key=@file`, `key:=@file.json`, `{…}`, `-`.

The two signs are HTTPie's, which many fingers know: `=` is text, `:=` is JSON; `@` after either reads a file
(bytes after `=`, JSON after `:=`). A `\` before the `@` keeps it as text. Everything here is pure but for
reading the files that were named. What is wrong is told with the place, and with how it would be right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from reach.cli.exits import usage
from reach.errors import SchemaInvalid
from reach.wire import codec

STDIN = "-"

_ARGUMENT = re.compile(r"(?P<key>[^=:@\s][^=:]*?)(?P<sign>:=|=)(?P<value>.*)", re.DOTALL)
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|m|h)?")
_UNITS_S = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}
_AROUND = 24
"""How many characters of bad JSON are shown on each side of the place."""

FORMS = "key=text, key:=json, key=@file (bytes), key:=@file.json, one JSON object, or - for one on stdin"


def parse(
    arguments: Sequence[str],
    *,
    params: str | None = None,
    read_stdin: Callable[[], bytes] | None = None,
) -> dict[str, Any]:
    """Read the parameters of one call: those of objects, then of stdin, then the single ones on top.

    Args:
        arguments: What stands after the capability.
        params: The JSON object of `--params`.
        read_stdin: Gives what `-` stands for.

    Raises:
        Refusal: with exit code 2; names the argument, the place in it, and a form that would do.
    """
    found: dict[str, Any] = {}
    if params is not None:
        found.update(_json_object(params, what="--params"))
    single = [argument for argument in arguments if argument != STDIN and not argument.startswith("{")]
    for argument in arguments:
        if argument.startswith("{"):
            found.update(_json_object(argument, what="the JSON object"))
    if (dashes := arguments.count(STDIN)) > 0:
        if dashes > 1:
            raise usage("- was given twice: stdin can be read once.")
        if read_stdin is None:
            raise usage("- stands for stdin, which is not read here.", fix=f"Right would be: {FORMS}")
        found.update(_json_object(_text(read_stdin(), what="stdin"), what="stdin"))
    seen: set[str] = set()
    for argument in single:
        key, value = one(argument)
        if key in seen:
            raise usage(f"{key} was given twice.", fix=f"A list is given as JSON: {key}:='[1, 2]'")
        seen.add(key)
        found[key] = value
    return found


def one(argument: str) -> tuple[str, Any]:
    """Read one `key…value` argument. Raises `Refusal`."""
    match = _ARGUMENT.fullmatch(argument)
    if match is None:
        raise usage(f"{_shown(argument)} is not a parameter.", fix=f"Right would be: {FORMS}")
    key, sign, value = match["key"].strip(), match["sign"], match["value"]
    as_json = sign == ":="
    if value.startswith("@"):
        content = _read(value[1:], key=key)
        return key, _json(_text(content, what=value[1:]), what=value[1:]) if as_json else content
    if as_json:
        return key, _json(value, what=key, hint=_as_text(key, value.strip()))
    try:
        value.encode()
    except UnicodeEncodeError:
        message = f"{key} is not UTF-8 text."
        raise usage(message, fix=f"Bytes come from a file: {key}=@FILE") from None
    return key, value[1:] if value.startswith("\\@") else value


def _as_text(key: str, value: str) -> str:
    """Say how a value is given as text, where that is what was meant."""
    if value.startswith(("{", "[", '"')) or len(value) > 2 * _AROUND:
        return ""
    return f"Text needs no quotes: {key}={value}"


def pairs(arguments: Iterable[str], *, option: str) -> dict[str, Any] | None:
    """Read the values of a repeatable `--require k=v`; None when there are none. Raises `Refusal`."""
    found: dict[str, Any] = {}
    for argument in arguments:
        key, sign, value = argument.partition("=")
        if not sign or not key or not value:
            raise usage(
                f"{option} {_shown(argument)} is not key=value.", fix=f"Right would be: {option} lang=zh"
            )
        found[key] = value
    return found or None


def duration(text: str, *, option: str) -> float:
    """Read a time such as `5`, `1.5s`, `500ms`, `2m` as seconds. Raises `Refusal`."""
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match["number"]) * _UNITS_S[match["unit"]] if match else 0.0
    if seconds <= 0:
        raise usage(
            f"{option} {_shown(text)} is not a time.",
            fix=f"Right would be: {option} 5 (seconds), 500ms, 2m or 1h",
        )
    return seconds


def json_line(line: bytes) -> dict[str, Any]:
    """Read one line of JSON lines as parameters. Raises `SchemaInvalid` saying what is wrong and where."""
    if codec.is_json(line):
        return codec.unpack(line)
    wanted = "a line is one JSON object of parameters"
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        shown = _shown(line[: 2 * _AROUND].decode("utf-8", "replace"))
        raise SchemaInvalid(f"{wanted}, and this is not JSON: {shown}") from None
    raise SchemaInvalid(f"{wanted}, not {_json_name(value)}")


def _json_object(text: str, *, what: str) -> dict[str, Any]:
    value = _json(text, what=what)
    if not isinstance(value, dict):
        raise usage(
            f"{what} is {_json_name(value)}; parameters are one JSON object.",
            fix="""Right would be: {"key": "value"}""",
        )
    return value


def _json(text: str, *, what: str, hint: str = "") -> Any:
    text = text.rstrip()
    if not text:
        raise usage(f"{what} is empty.", fix=hint or """Right would be JSON, such as {"key": "value"}""")
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_once_each)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}" if "\n" in text else f"column {error.colno}"
        raise usage(
            f"{what} is not JSON: {error.msg} at {where}\n{_pointed(error.doc, error.pos)}", fix=hint
        ) from None
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise usage(f"{what} is not JSON that can be sent: {why}", fix=hint) from None
    # Through the codec's own reader, so that {"$bytes": …} means here what it means on the wire.
    try:
        return codec.unpack(json.dumps({"value": value}).encode())["value"]
    except SchemaInvalid as error:
        message = re.sub(r"^value\b\.?", "", error.message).lstrip(": ")
        message = message.removeprefix("the JSON body cannot be read: ")
        raise usage(f"{what} cannot be sent: {message}") from None


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{_shown(twice)} stands twice in one object")
    return found


def _refuse_constant(word: str) -> object:
    raise ValueError(f"{word} has no form in JSON")


def _pointed(text: str, position: int) -> str:
    """Show the place: the text around it, and a caret below."""
    start = max(text.rfind("\n", 0, position) + 1, position - _AROUND)
    end = text.find("\n", position)
    end = min(len(text) if end < 0 else end, position + _AROUND)
    lead = "…" if start and text[start - 1 : start] != "\n" else ""
    return f"    {lead}{text[start:end]}\n    {' ' * (len(lead) + position - start)}^"


def _read(name: str, *, key: str) -> bytes:
    path = Path(name).expanduser()
    try:
        return path.read_bytes()
    except OSError as error:
        raise usage(
            f"{key}=@{name} cannot be read: {error.strerror or error}.",
            fix=f"To send the text itself: {key}='\\@{name}'",
        ) from None


def _text(content: bytes, *, what: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise usage(f"{what} is not UTF-8 text: byte {error.start} is {content[error.start]:#04x}.") from None


def _json_name(value: object) -> str:
    if value is None:
        return "null"
    names: dict[type, str] = {
        list: "a list",
        str: "a text",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "an object")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 2 * _AROUND else text[: 2 * _AROUND] + "…")
