"""Exports of other memory layers become memories, one person's at a time."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from memory_extproc.model import MemoryType, Source
from memory_extproc.portability.foreign import Foreign, read_foreign
from memory_extproc.portability.records import MemoryRecord, Read, Refused, RefusedError

MEM0 = {
    "id": "0a14d8f0-e364-4f5c-b305-10da1f0d0878",
    "memory": "Name is Alex. Enjoys basketball and gaming.",
    "user_id": "alex",
    "agent_id": "helper",
    "run_id": "run-7",
    "hash": "c412d8a6",
    "metadata": {"source": "chat"},
    "categories": ["hobbies"],
    "created_at": "2024-07-20T01:30:36.275141-07:00",
    "updated_at": None,
    "expiration_date": "2030-01-01",
}
VLLM = {
    "id": "mem_01",
    "type": "procedural",
    "content": "To deploy: run npm build, then docker push",
    "user_id": "alex",
    "source": "conversation",
    "importance": 0.699999988079071,
    "access_count": 3,
    "created_at": "2026-01-05T10:00:00Z",
    "updated_at": "0001-01-01T00:00:00Z",
}


def read(document: Any, kind: Foreign, user: str = "") -> list[Read]:
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    return list(read_foreign(io.BytesIO(raw), kind, user=user))


def test_a_memory_of_mem0() -> None:
    (found,) = read({"results": [MEM0]}, Foreign.MEM0)
    assert found == MemoryRecord(
        id=f"mem0:{MEM0['id']}",
        type=MemoryType.SEMANTIC,
        source=Source.LLM,
        created_at=datetime(2024, 7, 20, 8, 30, 36, 275141, tzinfo=UTC),
        expires_at=datetime(2030, 1, 1, tzinfo=UTC),
        session_id="run-7",
        metadata={"source": "chat", "agent_id": "helper", "categories": ["hobbies"]},
        content="Name is Alex. Enjoys basketball and gaming.",
    )


def test_a_point_of_mem0s_collection() -> None:
    payload = {"data": "Likes tea", "user_id": "alex", "created_at": "2024-07-20T01:30:36Z"}
    (found,) = read({"points": [{"id": 7, "payload": payload, "vector": [0.1]}]}, Foreign.MEM0)
    assert isinstance(found, MemoryRecord)
    assert (found.id, found.content) == ("mem0:7", "Likes tea")


def test_a_memory_of_the_semantic_router() -> None:
    (found,) = read({"memories": [VLLM], "total": 1, "limit": 20}, Foreign.VLLM)
    assert isinstance(found, MemoryRecord)
    assert (found.type, found.importance, found.access_count) == (MemoryType.PROCEDURAL, 0.7, 3)
    assert (found.origin, found.updated_at) == ("source=conversation", None)


def test_a_row_of_the_semantic_routers_collection() -> None:
    row = {**VLLM, "memory_type": "semantic", "metadata": '{"a": 1}', "created_at": 1767607200}
    del row["type"]
    (found,) = read(json.dumps(row).encode() + b"\n", Foreign.VLLM)
    assert isinstance(found, MemoryRecord)
    assert (found.type, found.metadata) == (MemoryType.SEMANTIC, {"a": 1})
    assert found.created_at == datetime(2026, 1, 5, 10, tzinfo=UTC)


@pytest.mark.parametrize("wrapped", [[MEM0, MEM0], {"count": 2, "next": None, "results": [MEM0, MEM0]}])
def test_a_list_by_itself_or_in_an_object(wrapped: Any) -> None:
    assert len(read(wrapped, Foreign.MEM0)) == 2
    assert len(read(json.dumps(wrapped, indent=2).encode(), Foreign.MEM0)) == 2


def test_lines_and_a_single_memory_with_a_list_in_it() -> None:
    inner = {**MEM0, "metadata": {"results": [1, 2]}}
    assert [isinstance(one, MemoryRecord) for one in read(json.dumps(inner).encode(), Foreign.MEM0)] == [True]
    lines = b"\n".join(json.dumps(MEM0).encode() for _ in range(3))
    assert len(read(lines, Foreign.MEM0)) == 3


def test_a_list_is_read_piece_by_piece() -> None:
    many = [{**MEM0, "id": n, "memory": "é" * 3000} for n in range(100)]
    found = read(many, Foreign.MEM0)
    assert [one.content for one in found if isinstance(one, MemoryRecord)] == ["é" * 3000] * 100


def test_other_peoples_memories_are_not_made_ones_own() -> None:
    both = [MEM0, {**MEM0, "user_id": "bob", "memory": "secret"}]
    first, second = read(both, Foreign.MEM0)
    assert isinstance(first, MemoryRecord)
    assert isinstance(second, Refused)
    first, second = read(both, Foreign.MEM0, user="bob")
    assert isinstance(first, Refused)
    assert isinstance(second, MemoryRecord)


@pytest.mark.parametrize(
    "wrong",
    [
        {**VLLM, "type": "opinion"},
        {**VLLM, "content": ""},
        {**VLLM, "created_at": 1e30},
        {**VLLM, "created_at": True},
        7,
        {**VLLM, "metadata": "{"},
        {**VLLM, "metadata": "[" * 100_000},
    ],
)
def test_what_is_no_memory_is_named_and_the_others_are_read(wrong: Any) -> None:
    found = read([VLLM, wrong, VLLM], Foreign.VLLM)
    assert [isinstance(one, MemoryRecord) for one in found] == [True, False, True]
    assert isinstance(found[1], Refused)
    assert found[1].place == "memory 2"


@pytest.mark.parametrize("broken", [b"[{]", b"\xff\xfe", b'[{"memory": "' + b"x" * 2_000_000, b"nonsense"])
def test_a_file_that_is_no_json_is_refused(broken: bytes) -> None:
    with pytest.raises(RefusedError):
        read(broken, Foreign.MEM0)


def test_an_empty_file_holds_nothing() -> None:
    assert read(b"", Foreign.MEM0) == read(b"[]", Foreign.MEM0) == []
