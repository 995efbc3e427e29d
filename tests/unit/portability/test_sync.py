"""Edits of a page reach the store, changes in the store reach the pages, and nobody's work is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from memory_extproc.errors import PermanentError
from memory_extproc.model import ImportProblem, ImportReport, MemoryType
from memory_extproc.portability.folder_sync import LIST, FolderSync, page_of
from memory_extproc.portability.records import MemoryRecord


class Far:
    """A store by id, as an import would change it. What holds REFUSE is not taken in."""

    def __init__(self, *contents: str) -> None:
        self.held = {f"m{n}": a_record(f"m{n}", content) for n, content in enumerate(contents, 1)}
        self.failing = False

    def records(self) -> Iterator[MemoryRecord]:
        for record in list(self.held.values()):
            if self.failing:
                raise PermanentError("the store is away")
            yield record

    def bring(self, records: Sequence[MemoryRecord]) -> ImportReport:
        problems = []
        for index, record in enumerate(records):
            if "REFUSE" in record.content:
                problems.append(ImportProblem(index, record.id, "too_large", "`content` is too large"))
                continue
            id_ = record.id or f"new{len(self.held)}"
            self.held[id_] = msgspec.structs.replace(record, id=id_)
        return ImportReport(added=len(records) - len(problems), problems=tuple(problems))

    def forget(self, ids: Sequence[str]) -> None:
        for id_ in ids:
            del self.held[id_]


def a_record(id_: str, content: str) -> MemoryRecord:
    return MemoryRecord(id=id_, type=MemoryType.SEMANTIC, content=content)


def edit(root: Path, id_: str, content: str) -> Path:
    path = root / "facts" / f"{id_}.md"
    path.write_bytes(page_of(a_record(id_, content)))
    return path


def test_the_first_round_writes_the_pages(tmp_path: Path) -> None:
    far = Far("likes tea", "has a cat")
    done = FolderSync(tmp_path, far).round()
    assert (done.applied, done.mirrored.written, done.problems) == (0, 2, ())
    assert not FolderSync(tmp_path, far).has_edits()


def test_an_edit_is_applied(tmp_path: Path) -> None:
    far = Far("likes tea")
    sync = FolderSync(tmp_path, far)
    sync.round()
    edit(tmp_path, "m1", "likes coffee")
    assert sync.has_edits()
    assert sync.round().applied == 1
    assert far.held["m1"].content == "likes coffee"
    assert not sync.has_edits()


def test_a_new_page_becomes_a_memory_and_stands_under_its_id(tmp_path: Path) -> None:
    far = Far("likes tea")
    sync = FolderSync(tmp_path, far)
    sync.round()
    (tmp_path / "facts" / "my note.md").write_text("---\ntype: semantic\n---\nhas a dog\n")
    (tmp_path / "facts" / "note.md").write_text("---\ntype: semantic\n---\nhas a bird\n")
    assert sync.round().applied == 2
    assert sorted(path.name for path in (tmp_path / "facts").iterdir()) == ["m1.md", "new1.md", "new2.md"]
    assert {one.content for one in far.held.values()} == {"likes tea", "has a dog", "has a bird"}


def test_what_changed_in_the_store_reaches_the_page(tmp_path: Path) -> None:
    far = Far("likes tea", "has a cat")
    sync = FolderSync(tmp_path, far)
    sync.round()
    far.held["m1"] = a_record("m1", "likes coffee")
    del far.held["m2"]
    sync.round()
    assert "likes coffee" in (tmp_path / "facts" / "m1.md").read_text()
    assert not (tmp_path / "facts" / "m2.md").exists()


def test_what_both_changed_stays_the_stores_and_the_persons_page_is_kept_aside(tmp_path: Path) -> None:
    far = Far("likes tea")
    sync = FolderSync(tmp_path, far)
    sync.round()
    far.held["m1"] = a_record("m1", "likes coffee")
    edit(tmp_path, "m1", "likes water")
    done = sync.round()
    assert done.applied == 0
    assert [place for place, _ in done.problems] == ["facts/m1.md"]
    assert far.held["m1"].content == "likes coffee"
    assert "likes coffee" in (tmp_path / "facts" / "m1.md").read_text()
    assert "likes water" in (tmp_path / "facts" / "m1.md.edited").read_text()


@pytest.mark.parametrize("content", ["REFUSE this", ""])
def test_what_is_not_taken_in_stays_in_its_page_to_be_mended(tmp_path: Path, content: str) -> None:
    far = Far("likes tea")
    sync = FolderSync(tmp_path, far)
    sync.round()
    page = edit(tmp_path, "m1", content).read_bytes()
    new = tmp_path / "facts" / "new.md"
    new.write_text(f"---\ntype: semantic\n---\n{content}\n")
    for _ in range(2):
        done = sync.round()
        assert sorted(place for place, _ in done.problems) == ["facts/m1.md", "facts/new.md"]
        assert (tmp_path / "facts" / "m1.md").read_bytes() == page
        assert new.exists()
    edit(tmp_path, "m1", "likes coffee")
    new.unlink()
    assert sync.round().applied == 1


def test_a_removed_page_is_forgotten_only_where_that_was_asked_for(tmp_path: Path) -> None:
    far = Far("likes tea", "has a cat")
    FolderSync(tmp_path, far).round()
    (tmp_path / "facts" / "m1.md").unlink()
    assert FolderSync(tmp_path, far).round().forgotten == 0
    assert (tmp_path / "facts" / "m1.md").exists()
    (tmp_path / "facts" / "m1.md").unlink()
    assert FolderSync(tmp_path, far, deletions=True).round().forgotten == 1
    assert set(far.held) == {"m2"}


def test_an_empty_folder_forgets_nothing(tmp_path: Path) -> None:
    far = Far("likes tea")
    assert FolderSync(tmp_path, far, deletions=True).round().forgotten == 0
    assert set(far.held) == {"m1"}


def test_a_store_that_goes_away_leaves_the_folder_as_it_is(tmp_path: Path) -> None:
    far = Far("likes tea", "has a cat")
    sync = FolderSync(tmp_path, far)
    sync.round()
    far.failing = True
    with pytest.raises(PermanentError):
        sync.round()
    assert len(list((tmp_path / "facts").iterdir())) == 2


def test_a_list_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / LIST).write_text("{")
    with pytest.raises(PermanentError, match="begin anew"):
        FolderSync(tmp_path, Far()).round()
