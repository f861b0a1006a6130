"""How one capability is shown: what it takes, field by field, and a call to copy.

Read from the JSON Schema on its card, in the words that refusals use too (`reach.registry.misfit`). The example
is made of the required fields, with values that have the right form; it is meant to be edited, not believed.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reach.registry.misfit import resolve, wanted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from reach.cli.roster import Offer

_EXAMPLES = {
    "date": "2025-01-31",
    "date-time": "2025-01-31T09:30:00Z",
    "time": "09:30:00",
    "duration": "PT15M",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "uri": "https://example.com/",
    "email": "someone@example.com",
}
_BYTES = frozenset({"binary", "base64", "base64url"})
"""Formats behind which a model wants bytes: on the wire they are bytes, and on the command line a file."""

_DEEP = 8


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter as a person reads it."""

    name: str
    takes: str
    required: bool
    default: Any
    description: str
    schema: Mapping[str, Any]

    @property
    def need(self) -> str:
        """Whether it must be given, and what it is when it is not."""
        if self.required:
            return "required"
        return (
            "optional" if self.default is None else f"default {json.dumps(self.default, ensure_ascii=False)}"
        )


def parameters(schema: Mapping[str, Any] | None) -> list[Parameter]:
    """Give the top-level parameters of an input schema, the required ones first, else in the schema's order."""
    if not schema:
        return []
    top = _resolved(schema, schema)
    required = set(top.get("required", ()))
    found = []
    for name, node in (top.get("properties") or {}).items():
        node_map = node if isinstance(node, Mapping) else {}
        inner = _resolved(node_map, schema)
        found.append(
            Parameter(
                name=name,
                takes="bytes" if inner.get("format") in _BYTES else wanted(node, schema),
                required=name in required,
                default=node_map.get("default"),
                description=str(node_map.get("description") or inner.get("description") or ""),
                schema=inner,
            )
        )
    return sorted(found, key=lambda one: not one.required)


def example_call(capability: str, kind: str, found: list[Parameter], schema: Mapping[str, Any] | None) -> str:
    """Give a command line that would be accepted, for a person to edit."""
    shown = [one for one in found if one.required] or found[:1]
    words = ["reach", "stream" if kind == "stream" else "call", capability]
    words += [_argument(one, schema or {}) for one in shown]
    return " ".join(words)


def _argument(one: Parameter, root: Mapping[str, Any]) -> str:
    if one.schema.get("format") in _BYTES:
        return f"{one.name}=@FILE"
    value = _value(one.schema, root, 0)
    if isinstance(value, str):
        return shlex.quote(f"{one.name}={value}")
    return f"{one.name}:={shlex.quote(json.dumps(value, ensure_ascii=False))}"


def _value(node: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    """Make up a value of the right form."""
    node = _resolved(node, root)
    for key in ("examples", "enum"):
        if choices := node.get(key):
            return choices[0]
    for key in ("default", "const"):
        if node.get(key) is not None:
            return node[key]
    if (known := _EXAMPLES.get(node.get("format", ""))) is not None:
        return known
    kind = node.get("type")
    if kind == "object" and depth < _DEEP:
        required = node.get("required", ())
        fields = node.get("properties") or {}
        return {name: _value(fields.get(name, {}), root, depth + 1) for name in required}
    if kind == "array" and isinstance(node.get("items"), Mapping) and depth < _DEEP:
        return [_value(node["items"], root, depth + 1)]
    return {"integer": node.get("minimum", 1), "number": node.get("minimum", 1.5), "boolean": True}.get(
        str(kind), [] if kind == "array" else {} if kind == "object" else "text"
    )


def _resolved(node: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow references, and take the first branch of a choice that is not null."""
    for _ in range(_DEEP):
        if "$ref" in node:
            node = resolve(node["$ref"], root)
        elif branches := node.get("anyOf") or node.get("oneOf"):
            node = next(
                (one for one in branches if isinstance(one, Mapping) and one.get("type") != "null"), {}
            )
        else:
            break
    return node


def described(offer: Offer, *, lanes: RenderableType | None = None) -> RenderableType:
    """Show a capability to a person, and its lanes where anybody leads calls."""
    from rich.console import Group
    from rich.text import Text

    from reach.cli import output

    card = offer.card
    found = parameters(card.input_schema)
    parts: list[RenderableType] = [Text(card.tag, style="bold")]
    if card.description:
        parts.append(Text(card.description))
    facts = [
        ("kind", card.kind),
        ("agents", ", ".join(offer.providers)),
        ("instances", str(offer.instances)),
        ("idempotent", "yes: doing it twice is the same as once" if card.idempotent else "no"),
    ]
    if card.timeout_s:
        facts.append(("time", f"{card.timeout_s:g} s"))
    if card.max_concurrency:
        facts.append(("at once", f"{card.max_concurrency} an instance"))
    parts.append(Text(""))
    parts += [Text(f"{name:<11} ", style="dim").append(value, style="none") for name, value in facts]
    if lanes is not None:
        parts += [Text(""), lanes]
    parts.append(Text(""))
    if found:
        rows = [(one.name, one.takes, one.need, one.description) for one in found]
        parts.append(output.grid(("parameter", "takes", "", "what it is"), rows))
    else:
        parts.append(
            Text("It takes no parameters." if card.input_schema else "It does not say what it takes.")
        )
    if card.output_schema:
        parts += [
            Text(""),
            Text("gives       ", style="dim").append(_gives(card.output_schema), style="none"),
        ]
    parts += [Text(""), Text(example_call(card.tag, card.kind, found, card.input_schema), style="cyan")]
    return Group(*parts)


def _gives(schema: Mapping[str, Any]) -> str:
    top = _resolved(schema, schema)
    fields = list(top.get("properties") or {})
    return f"a map of {', '.join(fields)}" if fields else wanted(schema, schema)
