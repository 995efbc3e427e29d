"""What goes wrong in a SQLite file, sorted by what we can do about it."""

from __future__ import annotations

import sqlite3

from memory_extproc.errors import GiveUpError, MemoryExtprocError, TryLaterError, UnknownFaultError

# https://www.sqlite.org/rescode.html, primary codes. What is in none of these lists is not known to be permanent.
_PASSING = {
    sqlite3.SQLITE_BUSY: "locked by another process",
    sqlite3.SQLITE_LOCKED: "locked by another process",
    sqlite3.SQLITE_PROTOCOL: "locked by another process",
    sqlite3.SQLITE_FULL: "full: no room on the disk",
    sqlite3.SQLITE_IOERR: "failing to read or write",
    sqlite3.SQLITE_CANTOPEN: "not to be opened",
    sqlite3.SQLITE_READONLY: "read-only",
    sqlite3.SQLITE_PERM: "not permitted to us",
    sqlite3.SQLITE_NOMEM: "out of memory",
    sqlite3.SQLITE_INTERRUPT: "interrupted",
}
_DAMAGED = {sqlite3.SQLITE_CORRUPT: "damaged", sqlite3.SQLITE_NOTADB: "damaged: not a SQLite database"}
# What accuses the values of one statement: it would fail again in the same way.
_PERMANENT = {sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE}
LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}


def code_of(error: BaseException) -> int:
    """The primary code; 0 where SQLite gave none."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def translated(error: sqlite3.Error, name: str) -> MemoryExtprocError:
    """Our kind of error for SQLite's; *name* is the file's, without its directory."""
    code = code_of(error)
    if code in _PASSING:
        return TryLaterError(f"{name} is {_PASSING[code]}")
    if code in _DAMAGED:
        # Later: an operator moves the file aside, and we take up the next. No turn is given up for the file.
        return TryLaterError(f"{name} is {_DAMAGED[code]}; move it aside to begin anew")
    kind = GiveUpError if code in _PERMANENT else UnknownFaultError
    return kind(f"{name} refused an operation ({getattr(error, 'sqlite_errorname', 'no code')})")
