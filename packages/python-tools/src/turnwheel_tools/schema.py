"""JSON Schemas of Python types, and the conversion of arguments to them."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections import UserString
from decimal import Decimal
from typing import Any, Literal, Union

_PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number", Decimal: "number"}
_LISTS = (list, set, frozenset, tuple)


class _InexactAsFloat:
    """A number that a float would round: its conversion to float is an error, also in pydantic."""

    def __float__(self) -> float:
        raise ValueError(f"a float would round {self}: send at most 15 digits if that is the value meant; otherwise the tool's parameter must be a Decimal")


class _InexactAsFloatInt(_InexactAsFloat, int):
    """An integer that a float would round."""


class _InexactAsFloatDecimal(_InexactAsFloat, Decimal):
    """A decimal that a float would round."""


class _OutOfRangeNumber(_InexactAsFloat, UserString):
    """The text of a number outside the range of every type."""


def parse_exact_number(text: str) -> Any:
    """The number of a message, which no conversion to float rounds."""
    kind, inexact = (int, _InexactAsFloatInt) if text.lstrip("-").isdigit() else (Decimal, _InexactAsFloatDecimal)
    try:
        value = kind(text)
    except (ArithmeticError, ValueError):
        return _OutOfRangeNumber(text)
    return value if Decimal(repr(float(Decimal(value)))) == value else inexact(value)


def schema_of(annotation: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type. Schemas that pydantic refers to are added to `definitions`.

    Raises TypeError for a type that has none.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return {}
    if annotation in (None, type(None)):
        return {"type": "null"}
    if annotation in _PLAIN:
        return {"type": _PLAIN[annotation]}
    if origin is typing.Annotated:
        schema = schema_of(arguments[0], definitions)
        texts = [text for text in arguments[1:] if isinstance(text, str)]
        return {**schema, "description": texts[0]} if texts else schema
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(argument, definitions) for argument in arguments]}
    if annotation in _LISTS or origin in _LISTS:
        if origin is tuple and arguments[1:] != (Ellipsis,):
            raise TypeError(f"{annotation}: write tuple[TYPE, ...]")
        return {"type": "array", "items": schema_of(arguments[0], definitions) if arguments else {}}
    if annotation is dict or origin is dict:
        if arguments and arguments[0] is not str:
            raise TypeError(f"{annotation}: the keys of JSON are str")
        values = schema_of(arguments[1], definitions) if arguments else {}
        return {"type": "object", "additionalProperties": values or True}
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return {"enum": [member.value for member in annotation]}
    if hasattr(annotation, "model_json_schema"):
        return _pydantic_schema(annotation, definitions)
    fields = _fields(annotation)
    if fields is None:
        raise TypeError(f"{annotation} has no JSON Schema")
    return object_schema(fields, definitions)


def object_schema(fields: dict[str, tuple[Any, bool]], definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object. Each field has its type, and whether it is required."""
    return {
        "type": "object",
        "properties": {name: schema_of(kind, definitions) for name, (kind, _) in fields.items()},
        "required": [name for name, (_, is_required) in fields.items() if is_required],
        "additionalProperties": False,
    }


def convert(annotation: Any, value: Any, place: str) -> Any:
    """The value of an argument as its type. `place` names it in errors.

    Raises TypeError or ValueError if it does not fit.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return convert(arguments[0], value, place)
    if origin in (Union, types.UnionType):
        return _convert_union(arguments, value, place)
    if annotation is Any:
        return plain_numbers(value)
    is_number = isinstance(value, (int, Decimal)) and not isinstance(value, bool)
    if annotation in (Decimal, float, int) and is_number and (annotation is not int or value == int(value)):
        return annotation(value)
    if annotation in (*_PLAIN, None, type(None)) and type(value) is (annotation or type(None)):
        return value
    if origin is Literal and any(type(value) is type(it) and value == it for it in arguments):
        return value
    if (annotation in _LISTS or origin in _LISTS) and isinstance(value, list):
        kind = arguments[0] if arguments else Any
        items = (convert(kind, item, f"{place}[{at}]") for at, item in enumerate(value))
        return (origin or annotation)(items)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return annotation(plain_numbers(value))
    if isinstance(value, dict):
        if annotation is dict or origin is dict:
            kind = arguments[1] if arguments else Any
            return {name: convert(kind, item, f"{place}.{name}") for name, item in value.items()}
        if hasattr(annotation, "model_validate"):
            return annotation.model_validate(value)
        fields = _fields(annotation)
        if fields is not None:
            return annotation(**convert_members(fields, value, place))
    raise TypeError(f"{place} is not of the type {getattr(annotation, '__name__', annotation)}")


def convert_members(
    fields: dict[str, tuple[Any, bool]], value: dict[str, Any], place: str
) -> dict[str, Any]:
    """The members of an object as their types."""
    unknown = [name for name in value if name not in fields]
    missing = [name for name, (_, required) in fields.items() if required and name not in value]
    if unknown or missing:
        problem, names = ("unknown", unknown) if unknown else ("missing", missing)
        raise TypeError(f"{place}: {problem}: {', '.join(names)}")
    return {name: convert(fields[name][0], item, f"{place}.{name}") for name, item in value.items()}


def plain_numbers(value: Any) -> Any:
    """The value with float in place of Decimal.

    Raises ValueError for a number that a float would round.
    """
    if isinstance(value, (int, Decimal, _OutOfRangeNumber)) and not isinstance(value, bool):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, list):
        return [plain_numbers(item) for item in value]
    if isinstance(value, dict):
        return {name: plain_numbers(item) for name, item in value.items()}
    return value


def _convert_union(kinds: tuple[Any, ...], value: Any, place: str) -> Any:
    reasons = []
    for kind in kinds:
        try:
            return convert(kind, value, place)
        except (TypeError, ValueError) as error:
            reasons.append(str(error))
    raise TypeError("; ".join(reasons))


def _fields(annotation: Any) -> dict[str, tuple[Any, bool]] | None:
    """Fields of a dataclass or a TypedDict: type, and whether the field is required."""
    if dataclasses.is_dataclass(annotation):
        hints = typing.get_type_hints(annotation, include_extras=True)
        missing = dataclasses.MISSING
        return {
            field.name: (hints[field.name], field.default is missing and field.default_factory is missing)
            for field in dataclasses.fields(annotation)
        }
    if typing.is_typeddict(annotation):
        hints = typing.get_type_hints(annotation, include_extras=True)
        return {name: (kind, name in annotation.__required_keys__) for name, kind in hints.items()}
    return None


def _pydantic_schema(model: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    schema = model.model_json_schema()
    for name, definition in schema.pop("$defs", {}).items():
        if definitions.setdefault(name, definition) != definition:
            raise TypeError(f"two types have the name {name}")
    return schema
