"""The JSON Schema (2020-12) of what a handler takes or gives, as it stands in a card.

Callers refuse early what cannot fit, so a schema must not promise more strictness than the agent has. Where
the agent's own validation takes more than JSON Schema can say (a validator that runs before the type check,
a field with several names, numbers taken as text), the node is marked `x-reach-lenient` and callers do not
check it (`reach.registry.structure`). Titles that only repeat a field's name are left out: cards travel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticOmit, core_schema

LENIENT: Final = "x-reach-lenient"
"""Marks a schema node that takes more than it says."""


class _CardSchema(GenerateJsonSchema):
    """Pydantic's generator, marking what it cannot say."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - the signature is pydantic's
        return False

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        return _marked(super().function_before_schema(schema))

    def function_wrap_schema(self, schema: core_schema.WrapValidatorFunctionSchema) -> JsonSchemaValue:
        return _marked(super().function_wrap_schema(schema))

    def function_plain_schema(self, schema: core_schema.PlainValidatorFunctionSchema) -> JsonSchemaValue:
        return _marked(super().function_plain_schema(schema))

    def str_schema(self, schema: core_schema.StringSchema) -> JsonSchemaValue:
        plain = super().str_schema(schema)
        return _marked(plain) if schema.get("coerce_numbers_to_str") else plain

    def union_schema(self, schema: core_schema.UnionSchema) -> JsonSchemaValue:
        """Mark unions that hide a branch (`SkipJsonSchema`): the hidden one is accepted all the same."""
        plain = super().union_schema(schema)
        return _marked(plain) if any(self._is_hidden(choice) for choice in schema["choices"]) else plain

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        plain = super().model_schema(schema)
        fields = getattr(schema["cls"], "__pydantic_fields__", {}).values()
        loose = schema.get("custom_init") or _has_choice_of_names(field.validation_alias for field in fields)
        return _marked(plain) if loose or _is_loose(schema.get("config")) else plain

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        plain = super().dataclass_schema(schema)
        inner: Any = schema["schema"]
        while "schema" in inner:
            inner = inner["schema"]
        loose = _has_choice_of_names(field.get("validation_alias") for field in inner.get("fields", ()))
        return _marked(plain) if loose or _is_loose(schema.get("config")) else plain

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        plain = super().typed_dict_schema(schema)
        loose = _has_choice_of_names(field.get("validation_alias") for field in schema["fields"].values())
        return _marked(plain) if loose or _is_loose(schema.get("config")) else plain

    def _is_hidden(self, choice: core_schema.CoreSchema | tuple[core_schema.CoreSchema, str]) -> bool:
        try:
            self.generate_inner(choice[0] if isinstance(choice, tuple) else choice)
        except PydanticOmit:
            return True
        return False


def _marked(node: JsonSchemaValue) -> JsonSchemaValue:
    return {**node, LENIENT: True}


def _has_choice_of_names(aliases: Iterable[Any]) -> bool:
    return any(alias is not None and not isinstance(alias, str) for alias in aliases)


def _is_loose(config: Mapping[str, Any] | None) -> bool:
    """Whether a model's configuration takes fields by name beside their alias, or numbers as text."""
    keys = ("validate_by_name", "populate_by_name", "coerce_numbers_to_str", "from_attributes")
    return config is not None and any(config.get(key) for key in keys)


def taken(adapter: TypeAdapter[Any]) -> dict[str, Any] | None:
    """Give the schema of what an adapter accepts; None where it has no form in JSON Schema."""
    try:
        return adapter.json_schema(mode="validation", schema_generator=_CardSchema)
    except PydanticInvalidForJsonSchema:
        return None


def given(adapter: TypeAdapter[Any]) -> dict[str, Any] | None:
    """Give the schema of what an adapter gives out; None where it has no form in JSON Schema."""
    try:
        return adapter.json_schema(mode="serialization", schema_generator=_CardSchema)
    except PydanticInvalidForJsonSchema:
        return None
