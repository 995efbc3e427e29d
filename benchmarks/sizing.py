"""How much a memory takes: bytes in process, bytes in Milvus Lite's file, and of what a gibibyte holds.

`python -m benchmarks.sizing [COUNT]` prints a table; docs/sizing.md has it.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from benchmarks import words
from benchmarks.one_store import OF_ONE_OWNER, open_store, owner_of, unit_rows
from benchmarks.rows import a_memory
from memory_extproc.model import Embedded
from memory_extproc.store.resident import ResidentRows

_GIB = 1024**3
_PAGE = resource.getpagesize()


_SAID = words.memories()


def message(number: int) -> str:
    """Two sentences of what callers of the benchmarks say: about as much as a message of a chat."""
    return f"{_SAID[number % len(_SAID)]} {_SAID[(number * 7 + 3) % len(_SAID)]}"


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def rows(owner: int, chance: np.random.Generator, now: datetime) -> list[Embedded]:
    texts = (message(owner * OF_ONE_OWNER + number) for number in range(OF_ONE_OWNER))
    vectors = unit_rows(chance, OF_ONE_OWNER)
    return [
        Embedded(a_memory(owner_of(owner), number, text, now, "random"), vector)
        for number, (text, vector) in enumerate(zip(texts, vectors, strict=True))
    ]


def in_process(count: int) -> tuple[float, float]:
    """Bytes a memory, as we count them and as the process grew."""
    chance, now = np.random.default_rng(1), datetime.now(UTC).replace(microsecond=0)
    before, held = resident(), []
    for owner in range(count // OF_ONE_OWNER):
        one = ResidentRows()
        for row in rows(owner, chance, now):
            one.put(row)
        held.append(one)
    return sum(one.size for one in held) / count, (resident() - before) / count


async def on_disk(count: int) -> float:
    chance, now = np.random.default_rng(1), datetime.now(UTC).replace(microsecond=0)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        async with open_store(directory, "", "sizing") as store:
            for owner in range(count // OF_ONE_OWNER):
                await store.put(owner_of(owner), rows(owner, chance, now))
        files = (Path(at) / name for at, _, names in os.walk(directory) for name in names)
        return sum(path.stat().st_size for path in files) / count


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    length = sum(len(message(number)) for number in range(1000)) / 1000
    counted, grown = in_process(count)
    stored = asyncio.run(on_disk(count))
    print(f"{count:,} memories of {length:.0f} characters, 384 dimensions, {OF_ONE_OWNER} of each caller")
    print("| what | bytes a memory | memories in a GiB |")
    print("|---|---|---|")
    for what, each in (
        ("in process, as `recall.partition_bytes` counts", counted),
        ("in process, as the process grows", grown),
        ("in Milvus Lite's file", stored),
    ):
        print(f"| {what} | {each:,.0f} | {_GIB / each:,.0f} |")


if __name__ == "__main__":
    main()
