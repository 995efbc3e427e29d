"""Whether an audit log is as it was written: no line removed, changed or cut off."""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from memory_extproc.api.audit import CURRENT, HEAD, genesis, mac_of, read_head, taken_apart


class FaultKind(StrEnum):
    CHANGED = "changed"
    REMOVED = "removed"  # the lines before this one are missing
    CUT_OFF = "cut off"  # lines are missing at the end
    NO_LINE = "not a line of the log"
    NO_HEAD = "no head"  # the file that says how far the log goes is missing or not ours


@dataclass(frozen=True, slots=True)
class Fault:
    kind: FaultKind
    file: str
    line: int  # of the file, from 1; 0: the file as a whole
    seq: int  # the number of the line in the log; 0: not known


@dataclass(frozen=True, slots=True)
class Verified:
    lines: int
    last: int  # the number of the last line
    faults: tuple[Fault, ...]


@dataclass(slots=True)
class _Walk:
    seq: int
    mac: str
    lines: int = 0


def verify(directory: Path, key: bytes, *, since: int = 1) -> Verified:
    """*since*: the number of the first line that should be there, where older files were put away. Raises OSError
    for what cannot be read."""
    files = [*sorted(directory.glob("audit-*.jsonl")), *sorted(directory.glob(CURRENT))]
    walk = _Walk(since - 1, genesis(key) if since == 1 else "")
    faults = [fault for path in files for fault in _of_file(path, key, walk)]
    faults += _of_head(directory, key, walk)
    return Verified(walk.lines, walk.seq, tuple(faults))


def _of_file(path: Path, key: bytes, walk: _Walk) -> Iterator[Fault]:
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, 1):
            fault = _of_line(line.removesuffix("\n"), key, walk)
            if fault is not None:
                yield Fault(fault, path.name, number, walk.seq)


def _of_line(line: str, key: bytes, walk: _Walk) -> FaultKind | None:
    parted = taken_apart(line)
    seq = _seq(parted[0]) if parted else 0
    if parted is None or not seq:
        return FaultKind.NO_LINE
    body, mac = parted
    before, expected = walk.mac, walk.seq + 1
    walk.lines += 1
    walk.seq, walk.mac = seq, mac
    if seq != expected:
        return FaultKind.REMOVED
    # Without the line before the first that was kept, its hash cannot be checked; the next one's vouches for it.
    if before and not hmac.compare_digest(mac_of(key, before, body).encode(), mac.encode("utf-8", "replace")):
        return FaultKind.CHANGED
    return None


def _seq(body: str) -> int:
    try:
        seq = json.loads(body)["seq"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0
    return seq if isinstance(seq, int) else 0


def _of_head(directory: Path, key: bytes, walk: _Walk) -> Iterator[Fault]:
    head = read_head(directory, key)
    if head is None:
        if walk.lines:
            yield Fault(FaultKind.NO_HEAD, HEAD, 0, 0)
    elif head[0] > walk.seq:
        # Lines beyond the head are sound: a crash may come between the two.
        yield Fault(FaultKind.CUT_OFF, CURRENT, 0, head[0])
