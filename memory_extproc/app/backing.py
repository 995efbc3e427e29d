"""Backups of everything that one installation keeps: its memories as they rest, and the files beside them."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import groupby, islice
from pathlib import Path

from memory_extproc.app.coordinating import JOURNAL
from memory_extproc.app.erasing import LEDGER, ledger_file
from memory_extproc.app.screening import CONSENT
from memory_extproc.app.tending import Tended
from memory_extproc.errors import GiveUpError, TryLaterError
from memory_extproc.model import Embedded, Owner
from memory_extproc.settings import Settings
from memory_extproc.store.archive import Head, Row, read_head, read_rows, writing
from memory_extproc.store.rows import readable, to_embedded

MEMORIES = "memories.jsonl.gz"
_PAGE = 200
Says = Callable[[str, int, int], None]  # what, how many are done, of how many


def _files(settings: Settings, data: Path) -> dict[str, Path]:
    """What is kept in files, by its name in a backup. Not the keys: who destroys one means it for backups, too."""
    return {JOURNAL: data / JOURNAL, CONSENT: data / CONSENT, LEDGER: ledger_file(settings, data)}


def back_up_files(settings: Settings, data: Path, to: Path) -> list[str]:
    """A copy of each file that is there, as it is at one moment, beside a sidecar that writes to it."""
    copied = []
    for name, path in _files(settings, data).items():
        if path.exists():
            _copied(path, to / name)
            copied.append(name)
    return copied


def _copied(path: Path, to: Path) -> None:
    to.unlink(missing_ok=True)
    to.touch(mode=0o600)
    try:
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(to)) as target:
            source.backup(target)
    except sqlite3.Error as error:
        raise TryLaterError(f"{path.name} cannot be copied ({error.sqlite_errorname})") from error


async def back_up_memories(tended: Tended, to: Path, says: Says) -> int:
    """Says how many rows there are."""
    head = Head(model=tended.embedder.fingerprint, dimension=tended.embedder.dimension)
    owners = [owner async for page in tended.store.owners() for owner in page]
    with writing(to / MEMORIES, head) as file:
        for number, owner in enumerate(owners):
            says("memories of callers", number, len(owners))
            async for page in tended.store.as_they_rest(owner, _PAGE):
                file.write(page)
        return file.rows


def restore_files(settings: Settings, data: Path, source: Path) -> dict[str, list[str]]:
    """Where one is missing it is put back; one that is there stays: what was forgotten since would be lost with it,
    and what was accepted. *data* must be held."""
    done: dict[str, list[str]] = {"restored": [], "kept": []}
    for name, path in _files(settings, data).items():
        if path.exists():
            done["kept"].append(name)
        elif (source / name).exists():
            shutil.copyfile(source / name, path)
            path.chmod(0o600)
            done["restored"].append(name)
    return done


async def restore_memories(tended: Tended, source: Path, says: Says) -> Counter[str]:
    """Counts rows: restored; newer, which were there as new already and stay; forgotten, which were not taken in;
    unreadable, of a newer version. Can be broken off and run again. GiveUpError before anything is changed where
    the backup is damaged or of another model."""
    path = source / MEMORIES
    head, rows = read_head(path)
    embedder = tended.embedder
    if (head.model, head.dimension) != (embedder.fingerprint, embedder.dimension):
        raise GiveUpError(
            f"{path} holds vectors of {head.model!r} ({head.dimension}), the configuration has"
            f" {embedder.fingerprint!r} ({embedder.dimension}): restore with the former, then `store reembed`"
        )
    counted: Counter[str] = Counter()
    done = 0
    for owner, page in _pages(path):
        says("rows", done, rows)
        done += len(page)
        counted += await _restored(tended, owner, page)
    return counted


def _pages(path: Path) -> Iterator[tuple[Owner, list[Row]]]:
    for (tenant, user), owned in groupby(read_rows(path), key=lambda row: (row["tenant_id"], row["user_id"])):
        while page := list(islice(owned, _PAGE)):
            yield Owner(tenant, user), page


async def _restored(tended: Tended, owner: Owner, page: list[Row]) -> Counter[str]:
    found: list[Embedded] = readable(page, to_embedded, tended.metrics.unreadable)
    there = {memory.id: memory for memory in await tended.store.get(owner, [row.memory.id for row in found])}
    older = [
        row
        for row in found
        if row.memory.id not in there or there[row.memory.id].updated_at < row.memory.updated_at
    ]
    ids = [row.memory.id for row in older]
    out: set[str] = set()
    if older:
        # Sealed texts rest sealed: what they are made of is known only once they are in their place, and until then
        # whoever reads asks the ledger, too.
        await tended.store.put(owner, older)
        out = await _forgotten_among(tended, owner, ids)
        await tended.store.delete(owner, sorted(out))
        await tended.coordination.bump(owner)
    return Counter(
        restored=len(older) - len(out),
        newer=len(found) - len(older),
        forgotten=len(out),
        unreadable=len(page) - len(found),
    )


async def _forgotten_among(tended: Tended, owner: Owner, ids: Sequence[str]) -> set[str]:
    """Those of *ids* that are in the store and are not to be seen any more."""
    marks = await tended.forgotten.of(owner)
    if not marks:
        return set()
    return {memory.id for memory in await tended.unsealed.get(owner, ids) if marks.covers(memory)}
