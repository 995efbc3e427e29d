"""Arguments that several commands of the memory API share, and what the API takes them as."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any, Literal

import typer

from memory_extproc.model import MemoryType

Kind = Literal["semantic", "procedural", "episodic", "reflective"]
Types = Annotated[list[MemoryType] | None, typer.Option("--type", help="only of this type; may be repeated")]
Project = Annotated[str, typer.Option(help="only of this project")]
Session = Annotated[str, typer.Option(help="only of this session")]
MemoryId = Annotated[str, typer.Argument(help="a memory's id")]
RequestId = Annotated[
    str, typer.Option("--request-id", help="a call that is made again with it changes nothing the second time")
]


def moment(text: str) -> Any:
    """A time as the API takes it. typer.BadParameter for what is none."""
    from google.protobuf.timestamp_pb2 import Timestamp  # noqa: PLC0415

    made = Timestamp()
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text}: expected a date or time like 2026-03-02 or 2026-03-02T09:00:00Z"
        ) from None
    made.FromDatetime(parsed.astimezone())
    return made


def words(types: list[MemoryType] | None) -> list[str]:
    return [one.value for one in types or []]


def struct(text: str) -> Any:
    from google.protobuf.struct_pb2 import Struct  # noqa: PLC0415

    if not text:
        return None
    made = Struct()
    try:
        made.update(json.loads(text))
    except (ValueError, TypeError, AttributeError):
        raise typer.BadParameter("--metadata: expected a JSON object") from None
    return made
