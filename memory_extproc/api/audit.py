"""The audit log: a JSON line per call with caller, method and owner, without texts of users.

Each line has a keyed hash over itself and the line before, and a head file names the last line, so that
`audit verify` detects lines that were removed, changed or truncated without the key."""

from __future__ import annotations

import errno
import hmac
import json
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from memory_extproc.api.principal import Principal
from memory_extproc.disk_reserve import DiskReserve
from memory_extproc.errors import ConfigurationError, TransientError
from memory_extproc.model import Owner
from memory_extproc.observe.log import logger
from memory_extproc.ports import Now
from memory_extproc.settings.api import AuditSection

log = logger(__name__)

CURRENT = "audit.jsonl"
HEAD = "audit.head"
ROTATED = "audit-{:012d}.jsonl"  # by the number of its first line
_MAC = ',"mac":"'
_RESERVE = 1024 * 1024  # bytes, for some thousand lines on a full disk
_TAIL = 64 * 1024  # bytes read from the end to find the last line


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """A call. *scope* contains the names of filters, never their values."""

    principal: Principal
    method: str
    owner: Owner | None  # of the memories; None if the caller named no user
    outcome: str  # the gRPC code
    reason: str = ""
    scope: str = ""
    count: int = 0  # memories read or written
    request_id: str = ""


def genesis(key: bytes) -> str:
    """The hash that precedes the first line."""
    return hmac.digest(key, b"audit genesis", "sha256").hex()


def mac_of(key: bytes, before: str, body: str) -> str:
    return hmac.digest(key, f"{before}\n{body}".encode(), "sha256").hex()


def head_of(key: bytes, seq: int, mac: str) -> str:
    """The head file's line, which names *seq* as the last line."""
    return f"{seq} {mac} {hmac.digest(key, f'audit head {seq} {mac}'.encode(), 'sha256').hex()}\n"


def taken_apart(line: str) -> tuple[str, str] | None:
    """Split a line into body and MAC; None if it is not a line of this log."""
    body, found, rest = line.rpartition(_MAC)
    return (body + "}", rest.removesuffix('"}')) if found and rest.endswith('"}') else None


class AuditLog:
    """Appends records. Records that cannot be written are kept and retried, and `check` rejects calls meanwhile."""

    def __init__(self, section: AuditSection, directory: Path, key: bytes, now: Now) -> None:
        self._section, self._directory, self._key = section, directory, key
        self._now = now
        self._path = directory / CURRENT
        self._seq = 0
        self._mac = genesis(key)
        self._waiting: deque[dict[str, Any]] = deque()
        self._file = -1
        self._reserve = DiskReserve(self._path, _RESERVE)

    def __enter__(self) -> Self:
        """Continue the existing log. ConfigurationError if the directory cannot be written."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = self._open_file()
            self._take_up()
            self._reserve.fill()
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                [f"api.audit.directory: {self._directory} cannot be used: {type(error).__name__}"]
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        os.close(self._file)

    def check(self) -> None:
        """TransientError while the log cannot be written: calls that cannot be logged are rejected."""
        if self._waiting and not self._flush():
            raise TransientError("the audit log cannot be written")

    def write(self, audited: AuditRecord) -> None:
        principal, owner = audited.principal, audited.owner
        whose = "" if owner is None else self._pseudonymize(f"owner\0{owner.key}", f"{owner.tenant}/{owner.user}")
        self._waiting.append(
            {
                "time": self._now().isoformat(timespec="milliseconds"),
                "who": self._pseudonymize(f"who\0{principal.name}", f"{principal.tenant}/{principal.user}"),
                "means": principal.means.value,
                "roles": sorted(principal.roles),
                "method": audited.method,
                "whose": whose,
                "scope": audited.scope,
                "count": audited.count,
                "outcome": audited.outcome,
                "reason": audited.reason,
                "request_id": audited.request_id,
            }
        )
        self._flush()

    def newest(self, count: int) -> Sequence[str]:
        """Up to that many lines of the current file without their MACs, the newest first."""
        with self._path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - _TAIL))
            found = file.read().decode("utf-8", "replace").splitlines()
        parted = [taken_apart(line) for line in found[-count:][::-1] if line.startswith("{")]
        return [each[0] for each in parted if each is not None]

    def _pseudonymize(self, hashed: str, plain: str) -> str:
        if self._section.names == "plain":
            return plain
        return hmac.digest(self._key, hashed.encode("utf-8", "surrogatepass"), "sha256").hex()[:24]

    def _flush(self) -> bool:
        while self._waiting:
            body = json.dumps({"seq": self._seq + 1, **self._waiting[0]}, separators=(",", ":"))
            mac = mac_of(self._key, self._mac, body)
            try:
                self._rotate_when_full()
                self._append(f'{body[:-1]}{_MAC}{mac}"}}\n'.encode())
                self._seq, self._mac = self._seq + 1, mac
                self._waiting.popleft()
                self._write_head()
            except OSError as error:
                if error.errno == errno.ENOSPC and self._reserve.release():
                    continue
                log.warning("api.audit_unwritable", kind=type(error).__name__, waiting=len(self._waiting))
                return False
        return True

    def _append(self, line: bytes) -> None:
        size = os.fstat(self._file).st_size
        written = 0
        try:
            written = os.write(self._file, line)
        finally:
            if written != len(line):
                os.ftruncate(self._file, size)  # a partial line would look like a changed line
        if written != len(line):
            raise OSError(errno.ENOSPC, "the disk is full")

    def _write_head(self) -> None:
        made = self._directory / f"{HEAD}.new"
        made.write_text(head_of(self._key, self._seq, self._mac))
        made.replace(self._directory / HEAD)

    def _rotate_when_full(self) -> None:
        if os.fstat(self._file).st_size < self._section.file_bytes:
            return
        if self._path.exists():  # else it was moved away, by somebody or by a rotation that came no further
            with self._path.open("rb") as file:
                first = json.loads(file.readline())["seq"]
            self._path.rename(self._directory / ROTATED.format(first))
        opened = self._open_file()
        os.close(self._file)
        self._file = opened

    def _open_file(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)

    def _take_up(self) -> None:
        """Continue after the last whole line; a torn line, from a crash, was never acknowledged. If the head names
        a later line, numbers continue after it, so that the gap is visible."""
        line = _last_line(self._file)
        rotated = sorted(self._directory.glob("audit-*.jsonl"))
        if line is None and rotated:
            with rotated[-1].open("rb") as file:
                line = _last_line(file.fileno(), mend=False)
        if line is not None:
            parted = taken_apart(line.decode())
            if parted is None:
                raise ValueError("the last line of the audit log is none of ours")
            self._seq, self._mac = json.loads(parted[0])["seq"], parted[1]
        head = read_head(self._directory, self._key)
        if head is not None and head[0] > self._seq:
            self._seq, self._mac = head


def read_head(directory: Path, key: bytes) -> tuple[int, str] | None:
    """(number, MAC) of the last line; None without a valid head file."""
    path = directory / HEAD
    words = path.read_text(encoding="utf-8", errors="replace").split() if path.exists() else []
    if len(words) != 3 or not words[0].isdecimal():  # noqa: PLR2004 - number, mac, and the mac over both
        return None
    seq, mac = int(words[0]), words[1]
    return (seq, mac) if head_of(key, seq, mac).split() == words else None


def _last_line(file: int, *, mend: bool = True) -> bytes | None:
    size = os.fstat(file).st_size
    start = max(0, size - _TAIL)
    tail = os.pread(file, size - start, start)
    whole = tail.rfind(b"\n") + 1
    if mend and whole < len(tail):
        os.ftruncate(file, start + whole)
    lines = tail[:whole].splitlines()
    return lines[-1] if lines else None


# Verification: detects removed, changed and truncated lines.


class FaultKind(StrEnum):
    CHANGED = "changed"
    REMOVED = "removed"  # the lines before this one are missing
    CUT_OFF = "cut off"  # lines are missing at the end
    NO_LINE = "not a line of the log"
    NO_HEAD = "no head"  # the file that says how far the log goes is missing or not ours


@dataclass(frozen=True, slots=True)
class AuditFault:
    kind: FaultKind
    file: str
    line: int  # of the file, from 1; 0: the file as a whole
    seq: int  # the number of the line in the log; 0: not known


@dataclass(frozen=True, slots=True)
class AuditVerification:
    lines: int
    last: int  # the number of the last line
    faults: tuple[AuditFault, ...]


@dataclass(slots=True)
class _Walk:
    seq: int
    mac: str
    lines: int = 0


def verify(directory: Path, key: bytes, *, since: int = 1) -> AuditVerification:
    """Verify a log. *since*: the number of the first expected line, if older files were moved away. OSError for an
    unreadable file."""
    files = [*sorted(directory.glob("audit-*.jsonl")), *sorted(directory.glob(CURRENT))]
    walk = _Walk(since - 1, genesis(key) if since == 1 else "")
    faults = [fault for path in files for fault in _of_file(path, key, walk)]
    faults += _of_head(directory, key, walk)
    return AuditVerification(walk.lines, walk.seq, tuple(faults))


def _of_file(path: Path, key: bytes, walk: _Walk) -> Iterator[AuditFault]:
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, 1):
            fault = _of_line(line.removesuffix("\n"), key, walk)
            if fault is not None:
                yield AuditFault(fault, path.name, number, walk.seq)


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
    # Without its predecessor, the first kept line cannot be checked; the hash of the next line covers it.
    if before and not hmac.compare_digest(mac_of(key, before, body).encode(), mac.encode("utf-8", "replace")):
        return FaultKind.CHANGED
    return None


def _seq(body: str) -> int:
    try:
        seq = json.loads(body)["seq"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0
    return seq if isinstance(seq, int) else 0


def _of_head(directory: Path, key: bytes, walk: _Walk) -> Iterator[AuditFault]:
    head = read_head(directory, key)
    if head is None:
        if walk.lines:
            yield AuditFault(FaultKind.NO_HEAD, HEAD, 0, 0)
    elif head[0] > walk.seq:
        # Lines beyond the head are valid: a crash may happen between the two writes.
        yield AuditFault(FaultKind.CUT_OFF, CURRENT, 0, head[0])
