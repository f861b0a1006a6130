"""What a caller can tell about parameters before sending them: presence and kind, at the top level only.

`compile_check` turns a card's JSON Schema into one function, built once a card and run once a call. It only
refuses what the agent's own validation would refuse for certain. That validation is pydantic's lax mode, so
"3" passes as a whole number, a number as a date, bytes as text; what is inside a field, and whether a value
makes sense, is the agent's to say. A schema that can refuse nothing compiles to None, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from reach.registry.misfit import did_you_mean, kind_of, resolve, told, wanted
from reach.registry.schemas import LENIENT

Check = Callable[[dict[str, Any]], str | None]
"""Gives None for parameters that may fit, else a sentence naming each field, what it wants and its kind."""

_Fits = Callable[[Any], bool]

_NESTING: Final = 12
_TRUTH_WORDS: Final = frozenset({"0", "off", "f", "false", "n", "no", "1", "on", "t", "true", "y", "yes"})
_ENDLESS: Final = frozenset({"inf", "infinity", "nan"})
_SCALAR: Final = (bool, int, float)


def _may_be_number(value: Any) -> bool:
    if value is None or isinstance(value, list | tuple | dict | set | frozenset):
        return False
    if isinstance(value, str):
        return any(mark.isdigit() for mark in value) or value.strip().lstrip("+-").lower() in _ENDLESS
    return True


def _may_be_whole(value: Any) -> bool:
    if isinstance(value, float):
        return value.is_integer()
    return _may_be_number(value)


def _may_be_truth(value: Any) -> bool:
    if isinstance(value, bool):
        return True
    if isinstance(value, int | float):
        return value in {0, 1}
    if isinstance(value, str):
        return value.strip().lower() in _TRUTH_WORDS
    return value is not None and not isinstance(value, list | tuple | dict | set | frozenset)


def _may_be_text(value: Any) -> bool:
    return value is not None and not isinstance(value, _SCALAR) and not isinstance(value, list | tuple | dict)


def _may_be_formatted(value: Any) -> bool:
    """Texts with a format (dates, durations) may come as numbers too."""
    return value is not None and not isinstance(value, list | tuple | dict)


def _may_be_list(value: Any) -> bool:
    return value is not None and not isinstance(value, (*_SCALAR, str, dict))


def _may_be_record(value: Any) -> bool:
    """Lists of fixed places (named tuples) may come as maps."""
    return value is not None and not isinstance(value, (*_SCALAR, str))


def _may_be_map(value: Any) -> bool:
    return value is not None and not isinstance(value, (*_SCALAR, str, bytes, list))


def _is_null(value: Any) -> bool:
    return value is None


_BY_TYPE: Final[dict[str, _Fits]] = {
    "string": _may_be_text,
    "integer": _may_be_whole,
    "number": _may_be_number,
    "boolean": _may_be_truth,
    "array": _may_be_list,
    "object": _may_be_map,
    "null": _is_null,
}


def compile_check(schema: Mapping[str, Any] | None) -> Check | None:
    """Compile a card's `input_schema`; None when it could refuse nothing (or there is none)."""
    return None if schema is None else _object_check(schema, schema, 0)


def _object_check(schema: Any, root: Mapping[str, Any], depth: int) -> Check | None:
    if depth > _NESTING or not isinstance(schema, Mapping) or schema.get(LENIENT):
        return None
    if (target := schema.get("$ref")) is not None:
        return _object_check(resolve(target, root), root, depth + 1)
    for key in ("anyOf", "oneOf"):
        if branches := schema.get(key):
            return _any_of([_object_check(branch, root, depth + 1) for branch in branches])
    properties = schema.get("properties") or {}
    required = tuple(schema.get("required") or ())
    open_ended = schema.get("patternProperties") or schema.get("allOf")
    closed = schema.get("additionalProperties") is False and not open_ended
    fields = {name: fits for name, node in properties.items() if (fits := _fits(node, root, 0)) is not None}
    if not (required or closed or fields):
        return None
    words = {name: wanted(properties.get(name, {}), root) for name in (*properties, *required)}
    return _top_level(fields, required, frozenset(properties) if closed else None, words)


def _top_level(
    fields: dict[str, _Fits], required: tuple[str, ...], known: frozenset[str] | None, words: dict[str, str]
) -> Check:
    def check(params: dict[str, Any]) -> str | None:
        problems = [f"{name} is missing (wanted {words[name]})" for name in required if name not in params]
        for name, value in params.items():
            fits = fields.get(name)
            if fits is None:
                if known is not None and name not in known:
                    problems.append(f"unknown field {name!r}{did_you_mean(name, known)}")
            elif not fits(value):
                problems.append(f"{name} should be {words[name]}, got {kind_of(value)}")
        return told(problems) if problems else None

    return check


def _any_of(checks: list[Check | None]) -> Check | None:
    """Pass when one branch passes; otherwise tell what the first lacks."""
    ready = [each for each in checks if each is not None]
    if len(ready) < len(checks) or not ready:
        return None

    def check(params: dict[str, Any]) -> str | None:
        first: str | None = None
        for branch in ready:
            problem = branch(params)
            if problem is None:
                return None
            first = first or problem
        return first

    return check


def _fits(node: Any, root: Mapping[str, Any], depth: int) -> _Fits | None:
    """Compile one field; None when anything may fit."""
    if not isinstance(node, Mapping) or depth > _NESTING or node.get(LENIENT):
        return None
    if "enum" in node or "const" in node:
        return (
            None  # Whether a value makes sense is the agent's to say, and enums may take words of their own.
        )
    if (target := node.get("$ref")) is not None:
        return _fits(resolve(target, root), root, depth + 1)
    for key in ("anyOf", "oneOf"):
        if branches := node.get(key):
            return _either([_fits(branch, root, depth + 1) for branch in branches])
    kind = node.get("type")
    if isinstance(kind, list):
        return _either([_BY_TYPE.get(each) for each in kind])
    if kind == "string" and "format" in node:
        return _may_be_formatted
    if kind == "array" and "prefixItems" in node:
        return _may_be_record
    return _BY_TYPE.get(kind or "")


def _either(branches: list[_Fits | None]) -> _Fits | None:
    """Fit when one branch fits."""
    ready = [each for each in branches if each is not None]
    if len(ready) < len(branches) or not ready:
        return None
    if len(ready) == 1:
        return ready[0]

    def fits(value: Any) -> bool:
        return any(branch(value) for branch in ready)

    return fits
