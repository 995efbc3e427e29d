"""Exports come back as they were, always in the same bytes, and faults are named."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import PurePosixPath

import msgspec
import pytest
from hypothesis import example, given

from memory_extproc.model import MemoryState, MemoryType, Provenance, Source
from memory_extproc.portability import folder_sync
from memory_extproc.portability import records as json_lines
from memory_extproc.portability.records import MemoryRecord, RefusedError, memory_of, read_record, record_of
from tests.support.builders import ANN, BOB, MONDAY, a_memory, a_message
from tests.unit.portability.records import records


@given(records())
@example(MemoryRecord(id="a", type=MemoryType.SEMANTIC, content="---\nid: b\n---\n"))
@example(MemoryRecord(id="a", type=MemoryType.SEMANTIC, content="\r\n\ufeff \n"))
@example(MemoryRecord(id="a", type=MemoryType.SEMANTIC, content="\r"))
@example(
    MemoryRecord(id="a", type=MemoryType.SEMANTIC, content="x", metadata={"<<": 1e16, "": "yes", "n": "\x85\u2028"})
)
def test_a_page_says_what_was_written_on_it(record: MemoryRecord) -> None:
    page = folder_sync.page_of(record)
    back = folder_sync.read_page(page)
    assert back == record
    assert folder_sync.page_of(back) == page


def test_how_often_a_memory_was_used_changes_no_page() -> None:
    memory = a_memory("likes tea", metadata={"subject": "user"})
    used = replace(memory, access_count=7, provenance=Provenance(subject="user", accessed=1_800_000_000))
    assert folder_sync.page_of(record_of(used)) == folder_sync.page_of(record_of(memory))


@given(records())
def test_a_line_says_what_was_written_on_it(record: MemoryRecord) -> None:
    line = json_lines.line_of(record)
    assert line.count(b"\n") == 1
    (back,) = json_lines.read_lines([line])
    assert back == record


@given(records())
def test_a_page_stands_where_its_id_is_found_again(record: MemoryRecord) -> None:
    assert folder_sync.id_at(folder_sync.place_of(record)) == record.id


@pytest.mark.parametrize(
    "place", ["readme.md", "facts/a/b.md", "notes/a.md", "facts/a.txt", "facts/..md", "facts/a b.md"]
)
def test_other_files_of_the_folder_are_none_of_ours(place: str) -> None:
    assert folder_sync.id_at(PurePosixPath(place)) == ""


def test_facts_turns_and_summaries_stand_apart() -> None:
    folders = {
        kind: folder_sync.place_of(MemoryRecord(id="a", type=kind, content="x")).parts[0] for kind in MemoryType
    }
    assert folders == {"semantic": "facts", "procedural": "facts", "episodic": "turns", "reflective": "summaries"}
    summed_up = MemoryRecord(id="a", type=MemoryType.EPISODIC, source=Source.SUMMARY, content="x")
    assert folder_sync.place_of(summed_up).parts[0] == "summaries"


def test_a_memory_comes_back_as_it_was_and_belongs_to_who_brings_it() -> None:
    memory = a_message("I moved to Oslo", session="s", seq=4, importance=0.9, metadata={"turn": "t"})
    back = memory_of(record_of(memory), ANN, memory.id, MONDAY)
    assert back == memory
    assert memory_of(record_of(memory), BOB, "other", MONDAY).owner == BOB


def test_nobody_is_named_in_an_export() -> None:
    line = json_lines.line_of(record_of(a_memory("likes tea")))
    page = folder_sync.page_of(record_of(a_memory("likes tea")))
    assert b"ann" not in line + page
    assert b"acme" not in line + page


def test_a_record_prints_no_words() -> None:
    assert "tea" not in repr(record_of(a_memory("likes tea")))


def test_a_tombstone_says_what_took_its_place() -> None:
    old = replace(a_memory("budget 1"), state=MemoryState.SUPERSEDED, superseded_by="new", valid_to=MONDAY)
    page = folder_sync.page_of(record_of(old)).decode()
    assert "state: superseded\n" in page
    assert 'superseded_by: "new"\n' in page
    assert "valid_to: 2026-03-02T09:00:00Z\n" in page


def test_a_page_as_a_person_would_write_one() -> None:
    page = b"\xef\xbb\xbf---\r\ntype: semantic\r\ncreated_at: 2026-03-02\r\nimportance: 1\r\n---\r\nLikes tea\r\n"
    record = folder_sync.read_page(page)
    assert (record.id, record.content, record.importance) == ("", "Likes tea", 1.0)
    assert record.created_at == datetime(2026, 3, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (b"likes tea", "front matter: expected a line of ---"),
        (b"---\ntype: semantic\nlikes tea", "front matter: expected a line of ---"),
        (b"---\ntype: [\n---\nx", "no YAML, at line"),
        (b"---\n- a\n---\nx", "expected `name: value` lines"),
        (b"---\ntype: semantic\n---\n", "`content`"),
        (b"---\ntype: fact\n---\nx", "`type`"),
        (b"---\ntype: semantic\ntitle: x\n---\nx", "title"),
        (b"---\ntype: semantic\nid: ../x\n---\nx", "`id`"),
        (b"---\ntype: semantic\nimportance: 2\n---\nx", "`importance`"),
        (b"---\ntype: semantic\ncreated_at: yesterday\n---\nx", "`created_at`"),
        (b"---\ntype: semantic\ncontent: y\n---\nx", "content: the words stand below"),
        (b"---\ntype: semantic\nmetadata: &a {b: [*a]}\n---\nx", "front matter"),
        (b"---\ntype: semantic\nmetadata: {a: &a [1], b: *a}\n---\nx", "in one place only"),
        (b"---\ntype: semantic\nmetadata: !!python/object:os.system {}\n---\nx", "no YAML"),
        (b"---\ntype: semantic\n---\n\xff", "no UTF-8"),
        (b"---\ntype: semantic\n---\n" + b"x" * folder_sync.PAGE_BYTES, "longer than"),
    ],
)
def test_what_is_wrong_with_a_page_is_said(page: bytes, said: str) -> None:
    with pytest.raises(RefusedError, match="(?s)" + said.replace("`", ".")):
        folder_sync.read_page(page)


def test_lines_that_hold_no_memory_are_named_and_the_others_are_read() -> None:
    good = json_lines.line_of(record_of(a_memory("likes tea")))
    lines = [json_lines.head(), good, b"{", b"[]", b"\n", b'{"type": "semantic"}\n', b" " * 9 + b"x" * 2**20, good]
    found = list(json_lines.read_lines(lines))
    assert [one.place if isinstance(one, json_lines.Refused) else "read" for one in found] == [
        "read", "line 3", "line 4", "line 6", "line 7", "read",
    ]  # fmt: skip


def test_a_file_of_a_newer_version_is_not_guessed_at() -> None:
    with pytest.raises(RefusedError, match="version 1"):
        list(json_lines.read_lines(io.BytesIO(b'{"format": "memory-extproc", "version": 2}\n')))


def test_a_value_that_json_has_no_word_for_is_refused() -> None:
    with pytest.raises(RefusedError):
        read_record({"type": "semantic", "content": "x", "metadata": {"a": float}})


def test_what_is_at_its_default_is_not_written() -> None:
    assert msgspec.json.decode(json_lines.line_of(MemoryRecord(id="a", type=MemoryType.SEMANTIC, content="x"))) == {
        "id": "a", "type": "semantic", "content": "x",
    }  # fmt: skip
