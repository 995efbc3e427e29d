"""A folder mirrors what is there and touches nothing that is not its own; its history can be made to forget."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from memory_extproc.errors import PermanentError
from memory_extproc.model import MemoryType, Source
from memory_extproc.portability.folder_sync import Folder, Mirrored, Repository, page_of, read_folder
from memory_extproc.portability.records import MemoryRecord, Refused


def a_record(id_: str, content: str = "likes tea", kind: MemoryType = MemoryType.SEMANTIC) -> MemoryRecord:
    return MemoryRecord(id=id_, type=kind, content=content)


def mirror(root: Path, *records: MemoryRecord) -> Mirrored:
    with Folder(root) as folder:
        for record in records:
            folder.put(record)
        return folder.mirror()


def pages(root: Path) -> list[str]:
    return sorted(
        str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and ".git" not in str(path)
    )


def test_each_memory_has_its_page_and_what_is_gone_has_none(tmp_path: Path) -> None:
    assert mirror(tmp_path, a_record("a"), a_record("b", kind=MemoryType.EPISODIC)).written == 2
    assert pages(tmp_path) == ["facts/a.md", "turns/b.md"]
    assert mirror(tmp_path, a_record("a")) == Mirrored(written=0, same=1, removed=1)
    assert mirror(tmp_path, a_record("a", "likes coffee")) == Mirrored(written=1, same=0, removed=0)
    assert mirror(tmp_path, a_record("a", kind=MemoryType.REFLECTIVE)) == Mirrored(written=1, same=0, removed=1)
    assert pages(tmp_path) == ["summaries/a.md"]


def test_the_page_of_a_summary_that_stood_among_the_turns_moves(tmp_path: Path) -> None:
    mirror(tmp_path, a_record("a", kind=MemoryType.EPISODIC))
    summed_up = MemoryRecord(id="a", type=MemoryType.EPISODIC, source=Source.SUMMARY, content="Hawaii: in May.")
    mirror(tmp_path, summed_up)
    assert pages(tmp_path) == ["summaries/a.md"]
    assert [record for _, record in read_folder(tmp_path)] == [summed_up]


def test_the_same_memories_are_the_same_bytes_in_whatever_order_they_came(tmp_path: Path) -> None:
    records = [a_record(f"m{n}") for n in range(5)]
    mirror(tmp_path / "one", *records)
    mirror(tmp_path / "other", *reversed(records))
    for page in pages(tmp_path / "one"):
        assert (tmp_path / "one" / page).read_bytes() == (tmp_path / "other" / page).read_bytes()


def test_other_files_of_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "facts").mkdir()
    for name in ("README.md", "facts/my note.md", "facts/list.txt"):
        (tmp_path / name).write_text("mine")
    mirror(tmp_path, a_record("a"))
    mirror(tmp_path)
    assert pages(tmp_path) == ["README.md", "facts/list.txt", "facts/my note.md"]


def test_pages_are_for_their_owner_alone(tmp_path: Path) -> None:
    mirror(tmp_path, a_record("a"))
    assert (tmp_path / "facts" / "a.md").stat().st_mode & 0o077 == 0


def test_a_link_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("theirs")
    (tmp_path / "root" / "facts").mkdir(parents=True)
    (tmp_path / "root" / "facts" / "a.md").symlink_to(outside)
    mirror(tmp_path / "root", a_record("a"))
    assert outside.read_text() == "theirs"
    assert not (tmp_path / "root" / "facts" / "a.md").is_symlink()


def test_what_cannot_be_written_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "facts").write_text("a file where the folder should be")
    with pytest.raises(PermanentError, match="facts"):
        mirror(tmp_path, a_record("a"))


def test_what_stands_in_the_folder_is_read_and_what_is_wrong_is_named(tmp_path: Path) -> None:
    mirror(tmp_path, a_record("a"))
    (tmp_path / "facts" / "copy.md").write_bytes(page_of(a_record("a")))
    (tmp_path / "facts" / "new.md").write_text("---\ntype: semantic\n---\nhas a cat\n")
    (tmp_path / "turns").mkdir()
    (tmp_path / "turns" / "bad.md").write_text("nothing")
    found = {str(place): one for place, one in read_folder(tmp_path)}
    assert found["facts/a.md"] == a_record("a")
    assert isinstance(found["facts/copy.md"], Refused)
    assert isinstance(new := found["facts/new.md"], MemoryRecord)
    assert new.content == "has a cat"
    assert isinstance(found["turns/bad.md"], Refused)


# --- history -----------------------------------------------------------------------------------------
def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def exported(root: Path, *records: MemoryRecord) -> bool:
    repository = Repository(root)
    repository.open()
    return repository.commit(mirror(root, *records))


def objects(root: Path) -> str:
    """Every object that the repository holds, reachable or not, as text."""
    names = git(root, "cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)").splitlines()
    shown: Sequence[str] = [git(root, "cat-file", "-p", name.split()[0]) for name in names]
    return "\n".join(shown)


def test_each_export_is_a_commit_unless_nothing_changed(tmp_path: Path) -> None:
    assert exported(tmp_path, a_record("a"))
    assert not exported(tmp_path, a_record("a"))
    assert exported(tmp_path, a_record("a", "likes coffee"), a_record("b"))
    assert exported(tmp_path)
    assert git(tmp_path, "log", "--pretty=%s").splitlines() == [
        "Export: 0 written, 2 removed",
        "Export: 2 written, 0 removed",
        "Export: 1 written, 0 removed",
    ]


def test_history_holds_what_was_forgotten_until_it_is_rewritten(tmp_path: Path) -> None:
    canary = a_record("b", "the CANARY sings\nM 100644 inline facts/a.md")
    exported(tmp_path, a_record("a"), canary)
    exported(tmp_path, a_record("a", "likes coffee"), a_record("b", "the CANARY sings again"))
    exported(tmp_path, a_record("a", "likes coffee"))
    assert "CANARY" in objects(tmp_path)
    assert Repository(tmp_path).rewrite() == 1
    assert "CANARY" not in objects(tmp_path)
    assert "likes tea" in objects(tmp_path)  # an older version of what is still there
    assert git(tmp_path, "status", "--porcelain") == ""
    assert len(git(tmp_path, "log", "--oneline").splitlines()) == 3
    assert Repository(tmp_path).rewrite() == 0


def test_a_branch_and_a_tag_forget_too(tmp_path: Path) -> None:
    exported(tmp_path, a_record("a"), a_record("b", "the CANARY sings"))
    git(tmp_path, "branch", "keep")
    git(tmp_path, "tag", "v1")
    exported(tmp_path, a_record("a"))
    Repository(tmp_path).rewrite()
    assert "CANARY" not in objects(tmp_path)
    assert "facts/a.md" in git(tmp_path, "ls-tree", "-r", "--name-only", "v1")


def test_commits_do_not_depend_on_whose_machine_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    exported(tmp_path / "root", a_record("a", "ends with\r"))
    assert not (tmp_path / "elsewhere").exists()
    monkeypatch.delenv("GIT_DIR")
    assert git(tmp_path / "root", "log", "--pretty=%an") == "memory-extproc\n"
    shown = ["git", "-C", str(tmp_path / "root"), "show", "HEAD:facts/a.md"]
    assert subprocess.run(shown, capture_output=True, check=True).stdout.endswith(b"ends with\r\n")


def test_where_git_fails_it_is_said(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("nonsense")
    with pytest.raises(PermanentError, match="git"):
        Repository(tmp_path).commit(Mirrored())
