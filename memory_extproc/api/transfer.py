"""Exports and imports over the API: streams that hold a few memories at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import UTC
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from memory_extproc.api.call import Call, Operation, bad_request, message_of, scope_of
from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.model import ConsentChange, Memory
from memory_extproc.portability.importer import NoPlaceError
from memory_extproc.ports import Exported, JournalEntry, MemoryExporter, MemoryImporter, Now

VERSION = 1
_OF_ANSWERS = frozenset({"history", "etag"})  # fields of answers, which an import passes over
_KEEP, _REPLACE = "keep", "replace"


class TransferCalls:
    def __init__(self, exports: MemoryExporter, imports: MemoryImporter, *, now: Now) -> None:
        self._exports, self._imports, self._now = exports, imports, now

    @property
    def operations(self) -> Mapping[str, Operation]:
        return {"ExportMemories": self.export, "ImportMemories": self.take_in}

    async def export(
        self, call: Call, request: pb.ExportMemoriesRequest
    ) -> AsyncIterator[pb.ExportMemoriesResponse]:
        call.scope = scope_of(request, "project_id")
        yield pb.ExportMemoriesResponse(
            header=pb.ExportHeader(
                version=VERSION,
                exported_at=self._now(),
                memories=await self._exports.count(call.owner),
                user_id=call.owner.user,
                tenant_id=call.owner.tenant,
            ),
            resume_token=request.resume_token,
        )
        pieces = self._exports.export(call.owner, project=request.project_id, after=request.resume_token)
        try:
            async for piece in pieces:
                call.count += isinstance(piece.what, Memory)
                yield _message(piece)
        except NoPlaceError:
            raise bad_request(("resume_token", "one that an export gave, or none")) from None

    async def take_in(
        self, call: Call, start: pb.ImportStart, requests: AsyncIterator[pb.ImportMemoriesRequest]
    ) -> pb.ImportMemoriesResponse:
        if start.on_conflict not in {"", _KEEP, _REPLACE}:
            raise bad_request(("start.on_conflict", f"{_KEEP} or {_REPLACE}"))
        call.scope = "dry_run" if start.dry_run else ""
        importing = self._imports.begin(call.owner, replace=start.on_conflict == _REPLACE, dry_run=start.dry_run)
        async for request in requests:
            if not request.HasField("memory"):
                raise bad_request(("memory", "every message but the first holds a memory"))
            await importing.take(fields_of(request.memory))
        report = await importing.finish()
        call.count = report.added + report.replaced
        return pb.ImportMemoriesResponse(
            added=report.added,
            same=report.same,
            replaced=report.replaced,
            conflicting=report.conflicting,
            refused=report.refused,
            problems=[
                pb.ImportProblem(index=one.index, id=one.id, reason=one.reason, message=one.message)
                for one in report.problems
            ],
        )


def fields_of(memory: pb.Memory) -> dict[str, Any]:
    """The fields of *memory* that are set, by name: times as datetimes, metadata as a dict. A time beyond the year
    9999, which no datetime holds, becomes a text that readers reject."""
    return {field.name: _plain(value) for field, value in memory.ListFields() if field.name not in _OF_ANSWERS}


def _plain(value: Any) -> Any:
    if isinstance(value, Timestamp):
        try:
            return value.ToDatetime(UTC)
        except (ValueError, OverflowError):
            return "a time out of range"
    if isinstance(value, Struct):
        return _whole(MessageToDict(value))
    return value


def _whole(value: Any) -> Any:
    """JSON's numbers, which a Struct holds as floats, as they were written: 1, not 1.0."""
    if isinstance(value, dict):
        return {name: _whole(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _message(piece: Exported) -> pb.ExportMemoriesResponse:
    match piece.what:
        case Memory() as memory:
            message = message_of(memory)
            message.ClearField("etag")  # of a memory where it is; it says nothing elsewhere
            return pb.ExportMemoriesResponse(memory=message, resume_token=piece.place)
        case ConsentChange(consent, at, by):
            change = pb.ConsentChange(at=at, state=consent.value, by=by)
            return pb.ExportMemoriesResponse(consent=change, resume_token=piece.place)
        case entry:
            return pb.ExportMemoriesResponse(turn=_turn(entry), resume_token=piece.place)


def _turn(entry: JournalEntry) -> pb.ExportedTurn:
    turn = entry.turn
    return pb.ExportedTurn(
        id=turn.id,
        session_id=turn.session,
        project_id=turn.project,
        seq=turn.seq,
        at=turn.at,
        asked=turn.asked,
        answered=turn.answered,
        state=entry.state.value,
    )
