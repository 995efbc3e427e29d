"""A process for test_full_disk.py: a small file system of its own, which it fills, then a forget's writes."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from memory_extproc.api.audit import AuditLog, AuditRecord
from memory_extproc.api.principal import Means, Principal
from memory_extproc.coordination.mirror import SqliteMirror
from memory_extproc.coordination.sqlite import SqliteLedger
from memory_extproc.model import LedgerJob
from memory_extproc.settings.api import AuditSection, PrincipalRole

FORGETS = 20


def fill(disk: Path) -> None:
    """Write until the disk has no byte left."""
    with (disk / "others").open("ab", buffering=0) as file:
        for size in (65536, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


async def forget(disk: Path) -> None:
    ledger, mirror = SqliteLedger(disk / "ledger.db"), SqliteMirror(disk / "mirror.db")
    key = b"k" * 32
    caller = Principal("acme", "alice", frozenset({PrincipalRole.USER}), Means.API_KEY, "caller")
    async with ledger, mirror:
        await ledger.key()
        await mirror.put({"first": b"record"})
        with AuditLog(AuditSection(), disk / "audit", key, lambda: datetime(2026, 1, 1, tzinfo=UTC)) as audit:
            for number in range(FORGETS):
                fill(disk)
                job = LedgerJob(f"job{number}", "subject", os.urandom(2000), shut=True, open=True)
                await ledger.write(job, cut=os.urandom(100))
                await mirror.put({f"job{number}": os.urandom(2000)})
                audit.write(AuditRecord(principal=caller, method="Forget", owner=None, outcome="OK", count=1))
                audit.check()
        open_jobs = len(await ledger.list_unfinished())
    lines = len((disk / "audit" / "audit.jsonl").read_text().splitlines())
    sys.stdout.write(f"{open_jobs} {lines}\n")


if __name__ == "__main__":
    asyncio.run(forget(Path(sys.argv[1])))
