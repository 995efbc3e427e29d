"""One call of the memory API, once it is known who calls and whose memories it is about."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from memory_extproc.api.principal import Principal
from memory_extproc.model import Owner


@dataclass(slots=True)
class Call:
    """What an operation is told, and where it writes down what the audit log should say."""

    method: str
    principal: Principal
    owner: Owner
    own: bool  # the caller's own memories; else those of another user of their tenant
    request_id: str = ""
    scope: str = ""  # the names of the filters given, joined by "+"
    count: int = field(default=0)  # memories read or written


# How a method is carried out, by the kind of its request and answer.
Unary = Callable[[Call, Any], Awaitable[Message]]
ServerStream = Callable[[Call, Any], AsyncIterator[Message]]
ClientStream = Callable[[Call, Any, AsyncIterator[Any]], Awaitable[Message]]  # first message, then the rest
Operation = Unary | ServerStream | ClientStream


def scope_of(request: Message, *filters: str) -> str:
    """The names of those of *filters* that *request* gives."""
    given = {descriptor.name for descriptor, _ in request.ListFields()}
    return "+".join(name for name in filters if name in given)
