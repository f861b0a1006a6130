"""How a value that does not fit is told.

A refusal names every field that is wrong, what would be right and what kind of thing was there instead,
in the wire's words (text, whole number, list, map). It never repeats a value: what an agent was handed may
be a secret, and a refusal travels through logs and models. The words are shared by the caller's structure
check, by the agent's own validation and by touched functions, so that all three read alike.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ErrorType

SHOWN: Final = 5
"""Problems told in full; the rest is counted. More than a handful is a wrong document, not a wrong field."""

_MAP: Final = "a map"
_WHOLE: Final = "a whole number"
_NUMBER: Final = "a number"
_TEXT: Final = "text"
_TRUTH: Final = "true or false"
_LIST: Final = "a list"
_DATE: Final = "a date such as 2025-01-31"
_MOMENT: Final = "a date and time such as 2025-01-31T09:30:00Z"
_TIME: Final = "a time such as 09:30:00"
_SPAN: Final = "a duration such as PT15M"
_UUID: Final = "a UUID"
_NULL: Final = "null"

_BY_TYPE: Final = {
    "string": _TEXT,
    "integer": _WHOLE,
    "number": _NUMBER,
    "boolean": _TRUTH,
    "array": _LIST,
    "object": _MAP,
    "null": _NULL,
}
_BY_FORMAT: Final = {
    "date": _DATE,
    "date-time": _MOMENT,
    "time": _TIME,
    "duration": _SPAN,
    "uuid": _UUID,
    "uri": "a URL",
    "email": "an e-mail address",
    "binary": "bytes",
}
_BY_ERROR: Final = {
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "decimal_type": _NUMBER,
    "decimal_parsing": _NUMBER,
    "string_type": _TEXT,
    "bytes_type": "bytes",
    "bool_type": _TRUTH,
    "bool_parsing": _TRUTH,
    "list_type": _LIST,
    "tuple_type": _LIST,
    "set_type": _LIST,
    "frozen_set_type": _LIST,
    "iterable_type": _LIST,
    "dict_type": _MAP,
    "mapping_type": _MAP,
    "model_type": _MAP,
    "model_attributes_type": _MAP,
    "dataclass_type": _MAP,
    "arguments_type": _MAP,
    "none_required": _NULL,
    "date_type": _DATE,
    "date_parsing": _DATE,
    "date_from_datetime_parsing": _DATE,
    "date_from_datetime_inexact": "a date, without a time of day",
    "datetime_type": _MOMENT,
    "datetime_parsing": _MOMENT,
    "datetime_from_date_parsing": _MOMENT,
    "time_type": _TIME,
    "time_parsing": _TIME,
    "time_delta_type": _SPAN,
    "time_delta_parsing": _SPAN,
    "uuid_type": _UUID,
    "uuid_parsing": _UUID,
    "timezone_aware": "a date and time with its time zone, such as 2025-01-31T09:30:00Z",
}
_KINDS: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (type(None), _NULL),
    (bool, "a boolean"),  # Before int, whose kind it also is.
    (int, _WHOLE),
    (float, _NUMBER),
    ((bytes, bytearray, memoryview), "bytes"),
    (Mapping, _MAP),
    ((list, tuple, set, frozenset), _LIST),
)
_UNKNOWN_FIELD: Final = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
_MISSING: Final = frozenset({"missing", "missing_argument", "missing_keyword_only_argument"})
# Kinds of pydantic's whose sentence may hold words of the input; everything that is not pydantic's may too.
_MAY_REPEAT: Final = frozenset({"value_error", "assertion_error", "get_attribute_error", "iteration_error"})
_STATIC: Final = frozenset(get_args(ErrorType)) - _MAY_REPEAT
_REPEAT_MIN: Final = 3
_LEAVES: Final = 500
_NESTING: Final = 12


def kind_of(value: object) -> str:
    """Name what kind of thing a value is on the wire, without the value."""
    if isinstance(value, str):
        return _TEXT if value else "empty text"
    for types, word in _KINDS:
        if isinstance(value, types):
            return word
    return f"a {type(value).__name__}"


def wanted(schema: Any, root: Mapping[str, Any], depth: int = 0) -> str:
    """Say in words what a node of a JSON Schema takes; `root` resolves `$ref`. Else it is `a value`."""
    if not isinstance(schema, Mapping) or depth > _NESTING:
        return "a value"
    if (target := schema.get("$ref")) is not None:
        return wanted(resolve(target, root), root, depth + 1)
    if choices := schema.get("enum"):
        return "one of " + ", ".join(repr(choice) for choice in choices[:12])
    if "const" in schema:
        return repr(schema["const"])
    for key in ("anyOf", "oneOf"):
        if branches := schema.get(key):
            return _either(wanted(branch, root, depth + 1) for branch in branches)
    if (word := _BY_FORMAT.get(schema.get("format", ""))) is not None:
        return word
    kind = schema.get("type")
    if isinstance(kind, list):
        return _either(_BY_TYPE.get(each, "a value") for each in kind)
    return _BY_TYPE.get(kind or "", "a value")


def resolve(target: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow a local `$ref` such as `#/$defs/Order`; anything else is the empty schema, which takes all."""
    if not target.startswith("#/"):
        return {}
    node: Any = root
    for step in target[2:].split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        node = node.get(key) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else {}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Give `: did you mean 'amount'?` for a misspelt name, or the names there are when they are few."""
    names = list(known)
    if close := difflib.get_close_matches(name, names, n=1):
        return f": did you mean {close[0]!r}?"
    if not names:
        return ": there are no parameters"
    return f" (there are {', '.join(sorted(names))})" if len(names) <= SHOWN else ""


def told(problems: Sequence[str]) -> str:
    """Join problems into one line: the first few in full, the rest counted."""
    more = len(problems) - SHOWN
    return "; ".join(problems[:SHOWN]) + (f"; and {more} more" if more > 0 else "")


def explain(error: ValidationError, given: object, *, schema: Mapping[str, Any] | None = None) -> str:
    """Put pydantic's findings into words. `given` is what was validated, `schema` what it should be."""
    root = schema or {}
    sentences: list[str] = []
    alternatives: dict[str, tuple[int, list[str], str]] = {}
    for found in error.errors(include_url=False):
        path, node = _locate(found, given, root)
        problem = _sentence(found, path, node, root)
        if problem is not None:
            sentences.append(problem)
            continue
        # Several branches of a union complain about the same place: one sentence with `or`.
        word = _expected(found, node, root)
        if path not in alternatives:
            alternatives[path] = (len(sentences), [word], kind_of(found["input"]))
            sentences.append("")
        elif word not in alternatives[path][1]:
            alternatives[path][1].append(word)
    for path, (place, words, got) in alternatives.items():
        sentences[place] = f"{path} should be {_either(words)}, got {got}"
    return told(list(dict.fromkeys(sentences)))


def _either(words: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(words))


def _sentence(found: ErrorDetails, path: str, node: Mapping[str, Any], root: Mapping[str, Any]) -> str | None:
    """Tell one finding, or None when it is of the form `should be <kind>, got <kind>`."""
    kind, message = found["type"], found["msg"]
    if kind in _MISSING:
        return f"{path} is missing (wanted {wanted(node, root)})"
    if kind in _UNKNOWN_FIELD:
        return f"unknown field {path!r}{did_you_mean(str(found['loc'][-1]), _siblings(found, root))}"
    if kind in _BY_ERROR or kind.endswith(("_type", "_parsing")):
        return None
    if kind.startswith("union_tag_"):
        ctx = found.get("ctx", {})
        tag = str(ctx.get("discriminator", "its tag")).strip("'")
        return f"{path}.{tag} should be one of {ctx.get('expected_tags', 'the known ones')}"
    if kind not in _STATIC:
        text = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
        if _repeats(text, found["input"]):
            text = "refused by the agent's own check, whose words are withheld because they repeat the value"
        return f"{path}: {text}"
    if message.startswith("Input should "):
        return f"{path} {message.removeprefix('Input ')}"
    return f"{path}: {message}"


def _expected(found: ErrorDetails, node: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    if (word := _BY_ERROR.get(found["type"])) is not None:
        return word
    message = found["msg"]
    if message.startswith("Input should be "):
        # Behind the comma stands why the text could not be read, which may quote it.
        return message.removeprefix("Input should be ").partition(", ")[0]
    return wanted(node, root)


def _locate(found: ErrorDetails, given: object, root: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Give the path as a person writes it, without labels of union branches, and the schema's node there."""
    path = ""
    value: Any = given
    node: Mapping[str, Any] = root
    last = len(found["loc"]) - 1
    for place, step in enumerate(found["loc"]):
        if isinstance(step, int):
            path += f"[{step}]"
            value = value[step] if isinstance(value, list | tuple) and step < len(value) else None
            node = _step(node, root, step)
        elif (isinstance(value, Mapping) and step in value) or (place == last and found["type"] in _MISSING):
            path += f".{step}" if path else step
            value = value.get(step) if isinstance(value, Mapping) else None
            node = _step(node, root, step)
    return path or "the parameters", node


def _step(node: Mapping[str, Any], root: Mapping[str, Any], step: str | int) -> Mapping[str, Any]:
    """Go one step down in a schema, through references and unions; the empty schema where it is not said."""
    for candidate in _branches(node, root, 0):
        if isinstance(step, int):
            items = candidate.get("items")
            if isinstance(items, Mapping):
                return items
        else:
            below = candidate.get("properties", {}).get(step)
            if isinstance(below, Mapping):
                return below
    return {}


def _branches(node: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> list[Mapping[str, Any]]:
    if depth > _NESTING:
        return []
    if (target := node.get("$ref")) is not None:
        return _branches(resolve(target, root), root, depth + 1)
    found = [node]
    for key in ("anyOf", "oneOf", "allOf"):
        for branch in node.get(key, ()):
            if isinstance(branch, Mapping):
                found += _branches(branch, root, depth + 1)
    return found


def _siblings(found: ErrorDetails, root: Mapping[str, Any]) -> list[str]:
    """Give the names known beside a field that is not."""
    node: Mapping[str, Any] = root
    for step in found["loc"][:-1]:
        below = _step(node, root, step)
        node = below or node
    names: list[str] = []
    for candidate in _branches(node, root, 0):
        names += candidate.get("properties", {})
    return names


def _repeats(text: str, value: object) -> bool:
    """Whether a sentence holds any part of the value that it is about."""
    stack, seen = [value], 0
    while stack:
        part = stack.pop()
        seen += 1
        if seen > _LEAVES:
            return True  # Too much to look through: say less rather than too much.
        if isinstance(part, Mapping):
            stack += part.values()
        elif isinstance(part, list | tuple | set | frozenset):
            stack += part
        elif isinstance(part, bytes):
            stack.append(part.decode(errors="replace"))
        elif part is not None and not isinstance(part, bool):
            word = str(part)
            if len(word) >= _REPEAT_MIN and word in text:
                return True
    return False
