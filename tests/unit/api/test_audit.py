"""The contents of the audit log, and the tampering that it notices."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memory_extproc.api.audit import CURRENT, HEAD, AuditLog, AuditRecord, FaultKind, verify
from memory_extproc.api.principal import Means, Principal
from memory_extproc.errors import ConfigurationError, TransientError
from memory_extproc.settings.api import AuditSection, PrincipalRole
from tests.support.builders import ANN, BOB, MONDAY

KEY = b"a key of the audit log"
ADMIN = Principal("acme", "ann", frozenset({PrincipalRole.ADMIN}), Means.JWT, "jwt\0acme\0ann")


def call(method: str = "StoreMemory", **fields: object) -> AuditRecord:
    given = {"principal": ADMIN, "method": method, "owner": BOB, "outcome": "OK", **fields}
    return AuditRecord(**given)  # type: ignore[arg-type]


def a_log(tmp_path: Path, **options: Any) -> AuditLog:
    # Files of a size that the configuration does not allow fill sooner.
    return AuditLog(AuditSection.model_construct(**options), tmp_path / "audit", KEY, lambda: MONDAY)


def written(tmp_path: Path, count: int = 5, **options: Any) -> Path:
    with a_log(tmp_path, **options) as log:
        for number in range(count):
            log.write(call(count=number))
    return tmp_path / "audit"


def kinds(directory: Path) -> list[FaultKind]:
    return [fault.kind for fault in verify(directory, KEY).faults]


def test_a_line_says_who_did_what_to_whose_memories_without_a_name(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        log.write(call(scope="project_id+type", count=3, request_id="r-1"))
        log.write(call(owner=ANN, outcome="NOT_FOUND", reason="NO_SUCH_MEMORY"))
    first, second = map(json.loads, (tmp_path / "audit" / CURRENT).read_text().splitlines())
    assert (first["method"], first["scope"], first["count"], first["request_id"]) == (
        "StoreMemory", "project_id+type", 3, "r-1",
    )  # fmt: skip
    assert (first["means"], first["roles"], first["outcome"]) == ("jwt", ["admin"], "OK")
    assert first["time"].startswith("2026-03-02T09:00:00")
    assert (second["outcome"], second["reason"]) == ("NOT_FOUND", "NO_SUCH_MEMORY")
    assert first["who"] == second["who"]
    assert first["whose"] != second["whose"]
    text = (tmp_path / "audit" / CURRENT).read_text()
    assert "ann" not in text
    assert "bob" not in text


def test_names_stand_in_it_where_that_is_configured(tmp_path: Path) -> None:
    with a_log(tmp_path, names="plain") as log:
        log.write(call())
    line = json.loads((tmp_path / "audit" / CURRENT).read_text())
    assert (line["who"], line["whose"]) == ("acme/ann", "acme/bob")


def test_an_untouched_log_is_sound_over_restarts_and_rotations(tmp_path: Path) -> None:
    for _ in range(3):
        directory = written(tmp_path, 10, file_bytes=1000)
    assert len(list(directory.glob("audit-*.jsonl"))) > 3
    verified = verify(directory, KEY)
    assert verified.faults == ()
    assert (verified.lines, verified.last) == (30, 30)


@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        (lambda lines: [*lines[:2], *lines[3:]], FaultKind.REMOVED),
        (lambda lines: lines[1:], FaultKind.REMOVED),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], FaultKind.REMOVED),
        (lambda lines: lines[:-1], FaultKind.CUT_OFF),
        (lambda lines: lines[:0], FaultKind.CUT_OFF),
        (lambda lines: [line.replace('"count":2', '"count":0') for line in lines], FaultKind.CHANGED),
        (lambda lines: [line.replace("StoreMemory", "GetMemory") for line in lines], FaultKind.CHANGED),
        (lambda lines: [*lines, lines[-1].replace('"seq":5', '"seq":6')], FaultKind.CHANGED),
        (lambda lines: [*lines[:2], "", *lines[2:]], FaultKind.NO_LINE),
        (lambda lines: [*lines[:2], "no line", *lines[2:]], FaultKind.NO_LINE),
        (lambda lines: [*lines[:2], lines[2][:-9], *lines[3:]], FaultKind.NO_LINE),
    ],
)
def test_what_was_done_to_a_line_is_found(
    tmp_path: Path, harm: Callable[[list[str]], list[str]], kind: FaultKind
) -> None:
    directory = written(tmp_path)
    path = directory / CURRENT
    path.write_text("".join(f"{line}\n" for line in harm(path.read_text().splitlines())))
    assert kind in kinds(directory)


def test_any_byte_that_is_changed_is_found(tmp_path: Path) -> None:
    path = written(tmp_path) / CURRENT
    sound, chance = path.read_bytes(), random.Random(7)
    for at in chance.sample(range(len(sound)), 200):
        changed = bytearray(sound)
        changed[at] ^= 1 << chance.randrange(7)
        path.write_bytes(changed)
        assert kinds(path.parent), f"byte {at}"
    path.write_bytes(sound)
    assert kinds(path.parent) == []


def test_a_file_that_is_gone_is_found_wherever_it_was(tmp_path: Path) -> None:
    directory = written(tmp_path, 30, file_bytes=1000)
    names = sorted(path.name for path in directory.glob("*.jsonl"))
    for name in names:
        kept = (directory / name).read_bytes()
        (directory / name).unlink()
        assert set(kinds(directory)) & {FaultKind.REMOVED, FaultKind.CUT_OFF}, name
        (directory / name).write_bytes(kept)
    assert kinds(directory) == []


def test_a_log_that_lost_its_end_does_not_go_on_as_if_nothing_was(tmp_path: Path) -> None:
    directory = written(tmp_path)
    (directory / CURRENT).unlink()
    written(tmp_path)
    assert kinds(directory) == [FaultKind.REMOVED]


def test_a_head_of_ours_is_needed(tmp_path: Path) -> None:
    directory = written(tmp_path)
    (directory / HEAD).write_text("1 " + "0" * 64 + " " + "0" * 64)
    assert kinds(directory) == [FaultKind.NO_HEAD]
    (directory / HEAD).unlink()
    assert kinds(directory) == [FaultKind.NO_HEAD]


def test_another_key_finds_every_line_changed(tmp_path: Path) -> None:
    directory = written(tmp_path)
    found = [fault.kind for fault in verify(directory, b"another key").faults]
    assert found == [FaultKind.CHANGED] * 5 + [FaultKind.NO_HEAD]


def test_files_that_were_put_away_are_not_missed_where_it_is_said_so(tmp_path: Path) -> None:
    directory = written(tmp_path, 30, file_bytes=1000)
    oldest, second, *_ = sorted(directory.glob("audit-*.jsonl"))
    oldest.unlink()
    since = json.loads(second.read_text().splitlines()[0])["seq"]
    assert FaultKind.REMOVED in kinds(directory)
    assert verify(directory, KEY, since=since).faults == ()


def test_a_line_that_a_crash_left_half_written_was_never_counted(tmp_path: Path) -> None:
    path = written(tmp_path) / CURRENT
    with path.open("a") as file:
        file.write('{"seq":6,"time":"2026')
    written(tmp_path, 1)
    assert verify(path.parent, KEY).last == 6
    assert kinds(path.parent) == []


def test_a_crash_between_a_line_and_the_head_is_no_fault(tmp_path: Path) -> None:
    directory = written(tmp_path)
    head = (directory / HEAD).read_text()
    written(tmp_path, 1)
    (directory / HEAD).write_text(head)
    assert kinds(directory) == []
    written(tmp_path, 1)
    assert verify(directory, KEY).last == 7


def test_while_it_cannot_be_written_calls_are_refused_and_no_line_is_lost(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    with a_log(tmp_path) as log:
        log.write(call())
        whole, log._file = log._file, os.open(full, os.O_RDWR)
        broken = log._file
        log.write(call("ForgetMemories"))
        with pytest.raises(TransientError):
            log.check()
        log._file = whole
        os.close(broken)
        log.check()
    methods = [json.loads(line)["method"] for line in (tmp_path / "audit" / CURRENT).read_text().splitlines()]
    assert methods == ["StoreMemory", "ForgetMemories"]
    assert kinds(tmp_path / "audit") == []


def test_a_file_that_somebody_moves_away_while_it_is_written_stops_no_call(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    with a_log(tmp_path, file_bytes=1_000) as log:
        log.write(call())
        (directory / CURRENT).rename(directory / "audit-000000000001.jsonl")
        for _ in range(5):
            log.write(call())
            log.check()
    assert (directory / CURRENT).exists()
    assert kinds(directory) == []


def test_a_directory_that_cannot_be_used_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("a file")
    with pytest.raises(ConfigurationError), a_log(tmp_path):
        pass
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / CURRENT).write_text("no line of ours\n")
    with pytest.raises(ConfigurationError), a_log(tmp_path, directory=tmp_path / "other"):
        pass
