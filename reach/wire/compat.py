"""Whether a JSON Schema may follow another without breaking somebody.

Two questions, by who is upgraded. When the *reader* is (what a capability takes), everything that was right
before must still be right: nothing may be required, narrowed or closed. When the *writer* is (what it
answers), everything that it now sends must be right to a reader of the old schema: nothing that was promised
may go, nothing may widen. A message of the wire changes on both sides at different times, so it must pass
both. Unknown fields are ignored by our readers; a new optional field is therefore always fine, unless the
schema forbids unknown ones.

What cannot be judged (`not`, `if`, conditional keywords …) is refused when it changes: a person decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

Side = Literal["reader", "writer"]
"""Who moves to the new schema first."""

_TYPES: Final = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_LEAST: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains")
_MOST: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains")
_FORMS: Final = ("pattern", "format", "multipleOf", "contentEncoding", "contentMediaType", "uniqueItems")
_WORDS: Final = frozenset(
    {"$schema", "$id", "$comment", "$defs", "title", "description", "examples", "deprecated", "definitions"}
    | {"readOnly", "writeOnly", "$anchor"}
)
_JUDGED: Final = frozenset(
    {"type", "enum", "const", "default", "required", "properties", "additionalProperties", "items", "$ref"}
    | {"then", "else"}
    | {"anyOf", "oneOf", *_LEAST, *_MOST, *_FORMS}
)
_BY_PLACE: Final = frozenset({"allOf", "prefixItems"})
_MISSING: Final = object()
_MAX_DEPTH: Final = 64


def incompatibilities(old: dict[str, Any], new: dict[str, Any], *, upgraded: Side = "reader") -> list[str]:
    """Say what would break if `new` followed `old`; empty when nothing would. One readable line each.

    `upgraded` is who moves first: `reader` for what is taken in, `writer` for what is given out. References
    are followed inside each document (`#/…`); raises `ValueError` for one that leads elsewhere or nowhere.
    """
    comparison = _Comparison(old, new, upgraded, [], set())
    comparison.compare(old, new, "", 0)
    return list(dict.fromkeys(comparison.found))


def both_ways(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Say what would break whoever moves first: the test of a message of the wire."""
    found = incompatibilities(old, new, upgraded="reader") + incompatibilities(old, new, upgraded="writer")
    return list(dict.fromkeys(found))


@dataclass(slots=True)
class _Comparison:
    """One walk over two documents."""

    old_root: dict[str, Any]
    new_root: dict[str, Any]
    upgraded: Side
    found: list[str]
    seen: set[tuple[str, str]]

    @property
    def reading(self) -> bool:
        return self.upgraded == "reader"

    def tell(self, path: str, what: str) -> None:
        self.found.append(f"{path or 'the whole'}: {what}")

    def compare(self, old: Any, new: Any, path: str, depth: int) -> None:
        """Compare two nodes, through their references and alternatives."""
        self._default(_resolved(old, self.old_root), _resolved(new, self.new_root), path)
        pair = (_reference(old), _reference(new))
        if all(pair):
            if pair in self.seen:
                return  # The same two parts, as in a schema that holds itself: judged where first met.
            self.seen.add(pair)
        if depth > _MAX_DEPTH:
            raise ValueError(f"{path}: the schema is nested deeper than {_MAX_DEPTH} levels")
        old_all = _alternatives(_resolved(old, self.old_root))
        new_all = _alternatives(_resolved(new, self.new_root))
        if len(old_all) == 1 and len(new_all) == 1:
            self._compare_one(old_all[0], new_all[0], path, depth)
        else:
            self._compare_alternatives(old_all, new_all, path, depth)

    def _compare_alternatives(
        self, old_all: list[dict[str, Any]], new_all: list[dict[str, Any]], path: str, depth: int
    ) -> None:
        """Every form that must live on needs one on the other side that takes its place."""
        must, may = (old_all, new_all) if self.reading else (new_all, old_all)
        for form in must:
            attempts = [self._tried(form, other, path, depth) for other in may]
            if all(attempts):
                self._tell_nearest(form, may, attempts, path)

    def _tried(self, form: dict[str, Any], other: dict[str, Any], path: str, depth: int) -> list[str]:
        trial = _Comparison(self.old_root, self.new_root, self.upgraded, [], set(self.seen))
        old, new = (form, other) if self.reading else (other, form)
        trial.compare(old, new, path, depth + 1)
        return trial.found

    def _tell_nearest(
        self, form: dict[str, Any], may: list[dict[str, Any]], attempts: list[list[str]], path: str
    ) -> None:
        same = [
            found
            for other, found in zip(may, attempts, strict=True)
            if self._types(form, new=not self.reading) & self._types(other, new=self.reading)
        ]
        if same:
            nearest: list[str] = min(same, key=len)
            self.found += nearest
            return
        types = _listed(self._types(form, new=not self.reading))
        self.tell(path, f"{types} is no longer taken" if self.reading else f"{types} is now sent too")

    def _types(self, form: dict[str, Any], *, new: bool) -> frozenset[str]:
        return _types(_resolved(form, self.new_root if new else self.old_root))

    def _compare_one(self, old: dict[str, Any], new: dict[str, Any], path: str, depth: int) -> None:
        old, new = _resolved(old, self.old_root), _resolved(new, self.new_root)
        self._type(_types(old), _types(new), path)
        self._values(_values(old), _values(new), path)
        for word in _LEAST:
            self._bound(word, old.get(word), new.get(word), path, least=True)
        for word in _MOST:
            self._bound(word, old.get(word), new.get(word), path, least=False)
        for word in _FORMS:
            self._form(word, old.get(word), new.get(word), path)
        self._fields(old, new, path, depth)
        if "items" in old or "items" in new:
            self.compare(old.get("items", {}), new.get("items", {}), f"{path}[]", depth + 1)
        for word in ("then", "else"):
            if word in old or word in new:
                self.compare(old.get(word, {}), new.get(word, {}), path, depth + 1)
        self._unjudged(old, new, path, depth)

    def _unjudged(self, old: dict[str, Any], new: dict[str, Any], path: str, depth: int) -> None:
        """Compare lists of schemas place by place; whatever else there is may not change at all."""
        for word in sorted((old.keys() | new.keys()) - _JUDGED - _WORDS):
            before, after = old.get(word), new.get(word)
            if word in _BY_PLACE and before and after and len(before) == len(after):
                for one, other in zip(before, after, strict=True):
                    self.compare(one, other, path, depth + 1)
            elif not word.startswith("x-") and not self._equal(before, after, depth):
                self.tell(path, f"{word} changed, which cannot be judged: let a person decide")

    def _equal(self, old: Any, new: Any, depth: int) -> bool:
        """Whether two nodes say the same, also where they lead to."""
        if depth > _MAX_DEPTH or old != new:
            return False
        return all(
            self._equal(_target(leads_to, self.old_root), _target(leads_to, self.new_root), depth + 1)
            for leads_to in _references(old)
        )

    def _type(self, old: frozenset[str], new: frozenset[str], path: str) -> None:
        lost, gained = _without(old, new), _without(new, old)
        if self.reading and lost:
            self.tell(path, f"the type was narrowed: {_listed(lost)} is no longer taken")
        if not self.reading and gained:
            self.tell(path, f"the type was widened: {_listed(gained)} is now sent too")

    def _values(self, old: list[Any] | None, new: list[Any] | None, path: str) -> None:
        """Compare lists of allowed values; None allows all."""
        must, may = (old, new) if self.reading else (new, old)
        if may is None:
            return
        if must is None:
            self.tell(
                path, "the values are now a closed list" if self.reading else "the list of values was opened"
            )
            return
        for value in must:
            if not any(_same(value, other) for other in may):
                self.tell(
                    path, f"{value!r} is no longer taken" if self.reading else f"{value!r} is now sent too"
                )

    def _bound(self, word: str, old: Any, new: Any, path: str, *, least: bool) -> None:
        tighter = old != new and (old is None or (new is not None and (new > old if least else new < old)))
        looser = old != new and (new is None or (old is not None and (new < old if least else new > old)))
        if self.reading and tighter:
            self.tell(path, f"{word} was tightened from {_shown(old)} to {_shown(new)}")
        if not self.reading and looser:
            self.tell(path, f"{word} was loosened from {_shown(old)} to {_shown(new)}")

    def _form(self, word: str, old: Any, new: Any, path: str) -> None:
        freed = new is None if self.reading else old is None
        if old != new and not freed:
            self.tell(path, f"{word} changed from {_shown(old)} to {_shown(new)}")

    def _default(self, old: dict[str, Any], new: dict[str, Any], path: str) -> None:
        before, after = old.get("default", _MISSING), new.get("default", _MISSING)
        if before is not _MISSING and not (after is not _MISSING and _same(before, after)):
            now = "none" if after is _MISSING else repr(after)
            self.tell(
                path, f"the default changed from {before!r} to {now}: leaving it out means another thing"
            )

    def _fields(self, old: dict[str, Any], new: dict[str, Any], path: str, depth: int) -> None:
        before, after = old.get("properties", {}), new.get("properties", {})
        needed, promised = set(new.get("required", ())), set(old.get("required", ()))
        for field in sorted(needed - promised) if self.reading else ():
            self.tell(_below(path, field), "the field is now required")
        for field in sorted(promised - needed) if not self.reading else ():
            if field in after or field not in before:
                self.tell(_below(path, field), "the field is no longer promised")
        for field, schema in before.items():
            if field in after:
                self.compare(schema, after[field], _below(path, field), depth + 1)
            else:
                self.tell(_below(path, field), "the field was removed")
        unknown = old.get("additionalProperties", True)
        self._unknown(unknown, new.get("additionalProperties", True), path, depth)
        for field in sorted(after.keys() - before.keys()):
            if isinstance(unknown, dict):
                self.compare(unknown, after[field], _below(path, field), depth + 1)
            elif unknown is False and not self.reading:
                self.tell(_below(path, field), "the field is new, and old readers refuse unknown fields")

    def _unknown(self, old: Any, new: Any, path: str, depth: int) -> None:
        if self.reading and old is not False and new is False:
            self.tell(path, "unknown fields are no longer taken (additionalProperties was closed)")
        elif not self.reading and old is False and new is not False:
            self.tell(path, "unknown fields may now be sent (additionalProperties was opened)")
        elif isinstance(old, dict) or isinstance(new, dict):
            self.compare(old, new, _below(path, "*"), depth + 1)


# ------------------------------------------------------------------------------------------------ reading a node


def _reference(node: Any) -> str:
    """Give where a node leads that is a reference and nothing else, or nothing."""
    if isinstance(node, dict) and "$ref" in node and not node.keys() - _WORDS - {"$ref", "default"}:
        return str(node["$ref"])
    return ""


def _references(node: Any) -> Iterable[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from _references(item)


def _resolved(node: Any, root: dict[str, Any]) -> dict[str, Any]:
    """Give a node with its references followed, as a map: `True` is anything, `False` is nothing."""
    for _ in range(_MAX_DEPTH):
        if node is True or node is False:
            return {} if node else {"enum": []}
        if not isinstance(node, dict):
            raise ValueError(f"a schema is a map or a boolean, not {node!r}")  # noqa: TRY004 - it was read
        if "$ref" not in node:
            return node
        beside = {key: value for key, value in node.items() if key != "$ref"}
        node = {**_target(str(node["$ref"]), root), **beside}
    raise ValueError("a reference leads back to itself")


def _target(reference: str, root: dict[str, Any]) -> dict[str, Any]:
    if not reference.startswith("#"):
        raise ValueError(f"the reference {reference!r} leads out of the document; only #/… is followed")
    node: Any = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, dict) or key not in node:
            raise ValueError(f"the reference {reference!r} leads nowhere")
        node = node[key]
    return node if isinstance(node, dict) else ({} if node else {"enum": []})


def _alternatives(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Give a schema as the list of forms that it allows, each with one type where types are listed."""
    for word in ("anyOf", "oneOf"):
        if word in schema:
            rest = {key: value for key, value in schema.items() if key not in {word, "default"}}
            return [form for one in schema[word] for form in _alternatives(_merged(rest, one))]
    if isinstance(types := schema.get("type"), list) and len(types) > 1:
        return [{**schema, "type": one} for one in types]
    return [schema]


def _merged(rest: dict[str, Any], one: Any) -> dict[str, Any]:
    """Give what stands beside a list of alternatives and one of them as one schema."""
    if not isinstance(one, dict):
        return rest if one else {"enum": []}
    both = (rest.keys() & one.keys()) - _WORDS - {"required", "properties"}
    same = rest.get("properties", {}).keys() & one.get("properties", {}).keys()
    closed = "additionalProperties" in (rest.keys() | one.keys()) and "properties" in (
        rest.keys() | one.keys()
    )
    if both or same or (closed and rest.keys() - _WORDS):
        return {
            **one,
            "allOf": [*one.get("allOf", ()), rest],
        }  # Each says its own; neither may hide the other.
    made = {**rest, **one}
    if "properties" in rest and "properties" in one:
        made["properties"] = {**rest["properties"], **one["properties"]}
    if "required" in rest and "required" in one:
        made["required"] = [*rest["required"], *one["required"]]
    return made


def _types(schema: dict[str, Any]) -> frozenset[str]:
    types = schema.get("type")
    if types is None:
        return _TYPES if (values := _values(schema)) is None else frozenset(_type_of(v) for v in values)
    return frozenset({types} if isinstance(types, str) else types)


def _type_of(value: Any) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return "null" if value is None else kinds[type(value)]


def _without(some: frozenset[str], others: frozenset[str]) -> frozenset[str]:
    covered = others | {"integer"} if "number" in others else others
    return some - covered


def _values(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return list(values) if values is not None else None


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _below(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field


def _listed(types: frozenset[str]) -> str:
    return " or ".join(sorted(types)) or "nothing"


def _shown(value: Any) -> str:
    return "none" if value is None else repr(value)
