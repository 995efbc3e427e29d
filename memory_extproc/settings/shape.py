"""Finding one's way through the configuration's types: what stands at a key, and whether it has parts."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo


def is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def fields_of(section: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """By the names they are written with."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def alternatives(kind: Any) -> Iterator[Any]:
    """The members of a union, or *kind* itself; without annotations."""
    origin = get_origin(kind)
    if origin is Annotated:
        yield from alternatives(get_args(kind)[0])
    elif origin in (Union, types.UnionType):
        for member in get_args(kind):
            yield from alternatives(member)
    else:
        yield kind


def has_parts(kind: Any) -> bool:
    """Whether its values are lists or mappings, which the environment gives as JSON."""
    return any(
        is_section(each) or get_origin(each) in (tuple, list, dict, frozenset) for each in alternatives(kind)
    )


def allows_none(kind: Any) -> bool:
    return any(each is type(None) for each in alternatives(kind))


def child(kind: Any, key: str | int) -> Any:
    """The type of what stands at *key* within *kind*; None when nothing can stand there."""
    for each in alternatives(kind):
        if is_section(each):
            field = fields_of(each).get(str(key))
            return field.annotation if field is not None else None
        if get_origin(each) in (tuple, list, frozenset) and isinstance(key, int):
            return get_args(each)[0]
        if get_origin(each) is dict:
            return get_args(each)[1]
    return None
