"""Data keys per owner: random, stored only wrapped by the master key; and the encryption of a text under them.

A text is encrypted with AES-256-GCM, bound to its context. The nonce is an HMAC of key, context and text
(synthetic, as in RFC 8452): equal texts in the same context give equal bytes, so that a retry is recognised, and a
nonce repeats only with the same message."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import sqlite3
import stat
from collections.abc import AsyncIterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cachetools import LRUCache
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from memory_extproc.coordination.sqlite_file import Schema, SqliteBacked, SqliteFile
from memory_extproc.errors import ConfigurationError, PermanentError, TransientError
from memory_extproc.model import DataKey, Embedded, JournalState, Owner, Turn
from memory_extproc.observe.log import logger
from memory_extproc.ports import Journal, KeyStore, KeyWrapper, MemoryStore

_VERSION = b"\x01"
_ID_BYTES, _NONCE_BYTES, _TAG_BYTES = 8, 12, 16
OVERHEAD = len(_VERSION) + _ID_BYTES + _NONCE_BYTES + _TAG_BYTES


class KeyDestroyedError(PermanentError):
    """The text was sealed with a destroyed key and can never be read."""


def seal(key: DataKey, context: bytes, plain: bytes) -> bytes:
    """Encrypt *plain* for *key* and *context*; the result is OVERHEAD bytes longer."""
    nonce = _nonce(key, context, plain)
    return _VERSION + key.id + nonce + AESGCM(key.secret).encrypt(nonce, plain, context)


def unseal(key: DataKey | None, context: bytes, sealed: bytes) -> bytes:
    """Decrypt *sealed*.

    KeyDestroyedError if it was sealed with another key; PermanentError if it is damaged or has another context."""
    body = len(_VERSION) + _ID_BYTES
    if len(sealed) < OVERHEAD or sealed[:1] != _VERSION:
        raise PermanentError("a sealed text that is damaged or of a newer version")
    if key is None or sealed[1:body] != key.id:
        raise KeyDestroyedError("a text sealed with a key that is gone")
    nonce, rest = sealed[body : body + _NONCE_BYTES], sealed[body + _NONCE_BYTES :]
    try:
        return AESGCM(key.secret).decrypt(nonce, rest, context)
    except InvalidTag:
        raise PermanentError("a sealed text that was damaged or moved") from None


def is_sealed(value: bytes) -> bool:
    """Whether *value* looks sealed; no JSON does."""
    return value[:1] == _VERSION


def seal_text(key: DataKey, context: bytes, text: str) -> str:
    """As `seal`, in ASCII. Lone surrogates, which no store accepts, become question marks."""
    return base64.b64encode(seal(key, context, text.encode("utf-8", "replace"))).decode()


def unseal_text(key: DataKey | None, context: bytes, sealed: str) -> str:
    try:
        raw = base64.b64decode(sealed, validate=True)
    except (binascii.Error, ValueError):
        raise PermanentError("a sealed text that is damaged") from None
    return unseal(key, context, raw).decode()


def sealable(room: int) -> int:
    """The bytes of UTF-8 that fit, sealed, into *room* bytes of ASCII."""
    return max(0, room // 4 * 3 - OVERHEAD)


def context_of(*parts: str) -> bytes:
    """An injective encoding of *parts*: lengths are included."""
    encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
    return b"".join(len(one).to_bytes(4, "big") + one for one in encoded)


def _nonce(key: DataKey, context: bytes, plain: bytes) -> bytes:
    own = hmac.new(key.secret, b"memory-extproc nonce", hashlib.sha256).digest()
    message = len(context).to_bytes(8, "big") + context + plain
    return hmac.new(own, message, hashlib.sha256).digest()[:_NONCE_BYTES]


if TYPE_CHECKING:
    from memory_extproc.coordination.redis_client import RedisLink


_SECRET_BYTES, _ID_BYTES = 32, 8
_UNWRAPPED = 4096  # keys in process, least recently used out
_PROOF = "proof"  # a reserved place: its value detects a wrong master key at start


class KeyTable(Protocol):
    """Storage of wrapped keys, by Owner.key. Durable on return."""

    async def get(self, place: str) -> bytes | None:
        """The current value, as written by any replica. Cheap: asked for every read and write."""

    async def add(self, place: str, wrapped: bytes) -> bytes:
        """Store *wrapped* if the place is empty; returns the value stored then."""

    async def swap(self, place: str, old: bytes, new: bytes) -> bool:
        """Store *new* if *old* is still stored; returns whether it was."""

    async def remove(self, place: str, wrapped: bytes) -> bool:
        """Remove *wrapped* if it is still stored; returns whether it was. No trace stays in the files."""

    def all(self) -> AsyncIterator[Sequence[tuple[str, bytes]]]:
        """All keys, in pages."""


class WrappedKeys:
    """Implements ports.KeyStore.

    Unwrapped keys are cached by their wrapped form, and the table is read each time: a key destroyed by another
    replica is not used any more."""

    def __init__(self, table: KeyTable, master: KeyWrapper) -> None:
        self._table, self.master = table, master
        # by place: the wrapped form and the key
        self._unwrapped: LRUCache[str, tuple[bytes, DataKey]] = LRUCache(_UNWRAPPED)

    async def is_in_use(self) -> bool:
        """Whether the table has been used with a master key."""
        return await self._table.get(_PROOF) is not None

    async def check(self) -> None:
        """Check that the master key matches the table's keys. PermanentError names the remedy."""
        wrapped = await self._table.get(_PROOF)
        if wrapped is None:
            wrapped = await self._table.add(_PROOF, await self.master.wrap(_PROOF.encode(), _context(_PROOF)))
        await self.master.unwrap(wrapped, _context(_PROOF))

    async def of(self, owner: Owner) -> DataKey:
        place = owner.key
        wrapped = await self._there(place)
        if wrapped is None:
            fresh = secrets.token_bytes(_ID_BYTES + _SECRET_BYTES)
            wrapped = await self._table.add(place, await self.master.wrap(fresh, _context(place)))
        return await self._unwrap(place, wrapped)

    async def find(self, owner: Owner) -> DataKey | None:
        wrapped = await self._there(owner.key)
        return None if wrapped is None else await self._unwrap(owner.key, wrapped)

    async def destroy(self, owner: Owner) -> bool:
        """Destroy the key that there is now. A later key stays, even if this is carried out late."""
        place, removed = owner.key, False
        # Another replica may exchange the wrapped form at the same time.
        while not removed and (wrapped := await self._table.get(place)) is not None:
            removed = await self._table.remove(place, wrapped)
        self._unwrapped.pop(place, None)
        return removed

    async def rotate(self) -> tuple[int, int]:
        """Rewrap all keys with the current master key; returns (rewrapped, already current).

        Keys destroyed in the meantime stay destroyed."""
        current = self.master.name
        anew = before = 0
        async for page in self._table.all():
            for place, wrapped in page:
                if self.master_of(wrapped) == current:
                    before += 1
                    continue
                plain = await self.master.unwrap(wrapped, _context(place))
                anew += await self._table.swap(place, wrapped, await self.master.wrap(plain, _context(place)))
        return anew, before

    async def masters(self) -> dict[str, int]:
        """The number of keys per master key, by its name."""
        counted: dict[str, int] = {}
        async for page in self._table.all():
            for _, wrapped in page:
                name = self.master_of(wrapped)
                counted[name] = counted.get(name, 0) + 1
        return counted

    @staticmethod
    def master_of(wrapped: bytes) -> str:
        """The name of the master key of *wrapped*."""
        return wrapped[:8].hex()

    async def _there(self, place: str) -> bytes | None:
        try:
            return await self._table.get(place)
        except TransientError:
            # Without the table no replica can have destroyed the key: turns are stored, and memories recalled.
            known = self._unwrapped.get(place)
            if known is None:
                raise
            return known[0]

    async def _unwrap(self, place: str, wrapped: bytes) -> DataKey:
        known = self._unwrapped.get(place)
        if known is not None and known[0] == wrapped:
            return known[1]
        plain = await self.master.unwrap(wrapped, _context(place))
        if len(plain) != _ID_BYTES + _SECRET_BYTES:
            raise PermanentError("a data key of another length than ours have")
        key = DataKey(plain[:_ID_BYTES], plain[_ID_BYTES:])
        self._unwrapped[place] = (wrapped, key)
        return key


def _context(place: str) -> bytes:
    return context_of("data key", place)


# Master keys from a file: the first key wraps, all keys unwrap. A key management service would be another
# KeyWrapper.

log = logger(__name__)
KEY_BYTES = 32
_NONCE_BYTES = 12
_NAME_BYTES = 8  # of a key's name
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Unusable(StrEnum):
    """Why a changed file is rejected. Also the field of the log event."""

    UNREADABLE = "unreadable"
    NO_KEYS = "no_keys"
    OTHER_KEYS = "other_keys"  # contains none of the keys in use


class UnknownMasterKeyError(TransientError):
    """Data keys were wrapped with an unavailable master key; the call works once it is available."""


def new_master_key() -> str:
    """Generate a line for the file."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def name_of(key: bytes) -> str:
    """The identity of a key: 16 hex digits that reveal nothing about it."""
    return hashlib.sha256(b"memory-extproc master key\0" + key).digest()[:_NAME_BYTES].hex()


class MasterKeyFile:
    """KeyWrapper over a file with a 32-byte key in Base64 on each line; `#` begins a comment.

    The file is reread when it changes, so that a rotation needs no restart. A changed file is rejected if it is
    invalid or lacks all keys in use: data wrapped with a mistaken key would be lost with it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = -1
        self._keys: Mapping[str, bytes] = {}
        self._unusable: Unusable | None = None  # as last reported
        self._read()

    @property
    def name(self) -> str:
        self._read()
        return next(iter(self._keys))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all keys, the wrapping key first."""
        self._read()
        return tuple(self._keys)

    @property
    def open_to_others(self) -> bool:
        """Whether other users than the file's owner may read it."""
        return bool(self._path.stat().st_mode & _OTHERS)

    async def wrap(self, key: bytes, context: bytes) -> bytes:
        return wrap_key(self._keys[self.name], key, context)

    async def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        name = master_of(wrapped)
        if name not in self._keys:
            self._read()
        master = self._keys.get(name)
        if master is None:
            raise UnknownMasterKeyError(
                f"a data key is wrapped with the master key {name}, which {self._path} does not hold "
                f"(it holds {', '.join(self._keys)}): add it there as a further line"
            )
        return unwrap_key(master, wrapped, context)

    def _read(self) -> None:
        """Reread a changed file. ConfigurationError if it is invalid; after a first success the old keys stay in
        use instead."""
        try:
            changed = self._path.stat().st_mtime_ns
            if changed == self._changed:
                return
            keys = _keys_in(self._path.read_text("utf-8-sig", errors="replace"))
        except (OSError, ValueError) as error:
            if self._keys:
                self._not_taken(Unusable.UNREADABLE if isinstance(error, OSError) else Unusable.NO_KEYS)
                return
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigurationError(
                [f"privacy.master_key_file: {self._path}: {reason}; `memory-extproc keys new` prints a key"]
            ) from None
        if self._keys and self._keys.keys().isdisjoint(keys):
            self._not_taken(Unusable.OTHER_KEYS)
            return
        self._keys, self._changed, self._unusable = keys, changed, None

    def _not_taken(self, why: Unusable) -> None:
        if why is not self._unusable:
            log.warning("keys.master_key_file_not_taken", why=why.value)
        self._unusable = why


def wrap_key(master: bytes, key: bytes, context: bytes) -> bytes:
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return bytes.fromhex(name_of(master)) + nonce + AESGCM(master).encrypt(nonce, key, context)


def unwrap_key(master: bytes, wrapped: bytes, context: bytes) -> bytes:
    nonce, rest = wrapped[_NAME_BYTES : _NAME_BYTES + _NONCE_BYTES], wrapped[_NAME_BYTES + _NONCE_BYTES :]
    try:
        return AESGCM(master).decrypt(nonce, rest, context)
    except (InvalidTag, ValueError):
        raise PermanentError("a wrapped data key that was damaged or moved") from None


def master_of(wrapped: bytes) -> str:
    return wrapped[:_NAME_BYTES].hex()


def _keys_in(text: str) -> dict[str, bytes]:
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    keys: dict[str, bytes] = {}
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            key = base64.b64decode(line, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            raise ValueError(f"line {number} is no key of {KEY_BYTES} bytes in Base64")
        keys.setdefault(name_of(key), key)
    if not keys:
        raise ValueError("holds no key")
    return keys


# Key renewal: destroys an owner's key while keeping the data written after the forget.

_PAGE = 100
_TO_COME = frozenset({JournalState.WAITING, JournalState.STORED})


class RenewedKeys:
    """Implements ports.KeyStore over *keys*. *store* and *journal* are the encrypted wrappers.

    Call `destroy` after the forgotten data is deleted: the remaining data is read and sealed with a new key. No
    other writer may write to the owner's store meanwhile; turns may arrive."""

    def __init__(self, keys: KeyStore, store: MemoryStore, journal: Journal) -> None:
        self._keys, self._store, self._journal = keys, store, journal

    async def of(self, owner: Owner) -> DataKey:
        return await self._keys.of(owner)

    async def find(self, owner: Owner) -> DataKey | None:
        return await self._keys.find(owner)

    async def destroy(self, owner: Owner) -> bool:
        rows: list[Embedded] = []
        async for page in self._store.pages(owner, _PAGE, fresh=True):
            rows += page
        turns: list[Turn] = [entry.turn async for entry in self._journal.of_owner(owner) if entry.state in _TO_COME]
        destroyed = await self._keys.destroy(owner)
        if rows:
            await self._store.put(owner, rows)
        for turn in turns:
            await self._journal.append(turn)
        if rows or turns:
            log.info("keys.sealed_anew", memories=len(rows), turns=len(turns))
        return destroyed


# Tables of wrapped keys: SQLite for a single replica, Redis for several.

_SCHEMA = Schema(
    application=0x6D65786B,  # "mexk"
    version=1,
    script="CREATE TABLE keys (place TEXT PRIMARY KEY, wrapped BLOB NOT NULL) WITHOUT ROWID",
)
_KEYS_PAGE = 500


class SqliteKeyTable(SqliteBacked):
    """Survives power loss: a lost key makes its owner's texts unreadable. Other processes may use the file too."""

    def __init__(self, path: Path) -> None:
        self._file = SqliteFile(path, _SCHEMA, fsync=True)

    async def get(self, place: str) -> bytes | None:
        row = self._file.read(_READ, (place,))
        return None if row is None else bytes(row[0])

    async def add(self, place: str, wrapped: bytes) -> bytes:
        def add(connection: sqlite3.Connection) -> bytes:
            connection.execute(
                "INSERT INTO keys (place, wrapped) VALUES (?, ?) ON CONFLICT (place) DO NOTHING", (place, wrapped)
            )
            return bytes(connection.execute(_READ, (place,)).fetchone()[0])

        return await self._file.run(add)

    async def swap(self, place: str, old: bytes, new: bytes) -> bool:
        swap = "UPDATE keys SET wrapped = ? WHERE place = ? AND wrapped = ?"
        return await self._file.execute(swap, (new, place, old), scrub=True) == 1

    async def remove(self, place: str, wrapped: bytes) -> bool:
        delete = "DELETE FROM keys WHERE place = ? AND wrapped = ?"
        return await self._file.execute(delete, (place, wrapped), scrub=True) == 1

    async def all(self) -> AsyncIterator[Sequence[tuple[str, bytes]]]:
        after = ""
        while page := await self._file.fetch(_PAGE_OF_KEYS, (after, _KEYS_PAGE)):
            yield [(str(place), bytes(wrapped)) for place, wrapped in page]
            after = page[-1][0]


class RedisKeyTable:
    """A Redis hash. The server must be durable: appendonly, and no eviction."""

    def __init__(self, link: RedisLink, *, prefix: str) -> None:
        self._link, self._client, self._name = link, link.client, f"{prefix}:keys"
        self._swap = link.client.register_script(_SWAP)
        self._add = link.client.register_script(_ADD)
        self._remove = link.client.register_script(_REMOVE)

    async def get(self, place: str) -> bytes | None:
        found = await self._link.limit_time(self._client.hget(self._name, place))
        return None if found is None else bytes(found)

    async def add(self, place: str, wrapped: bytes) -> bytes:
        return bytes(await self._link.limit_time(self._add(keys=[self._name], args=[place, wrapped])))

    async def swap(self, place: str, old: bytes, new: bytes) -> bool:
        return bool(await self._link.limit_time(self._swap(keys=[self._name], args=[place, old, new])))

    async def holds_any(self) -> bool:
        return bool(await self._link.limit_time(self._client.exists(self._name)))

    async def remove(self, place: str, wrapped: bytes) -> bool:
        return bool(await self._link.limit_time(self._remove(keys=[self._name], args=[place, wrapped])))

    async def all(self) -> AsyncIterator[Sequence[tuple[str, bytes]]]:
        cursor = -1
        while cursor:
            cursor, page = await self._link.limit_time(
                self._client.hscan(self._name, cursor=max(cursor, 0), count=_KEYS_PAGE)
            )
            yield [(place.decode(), bytes(wrapped)) for place, wrapped in page.items()]


_READ = "SELECT wrapped FROM keys WHERE place = ?"
_PAGE_OF_KEYS = "SELECT place, wrapped FROM keys WHERE place > ? ORDER BY place LIMIT ?"
_ADD = """
redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
return redis.call('HGET', KEYS[1], ARGV[1])
"""
_SWAP = """
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
"""
_REMOVE = """
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
return redis.call('HDEL', KEYS[1], ARGV[1])
"""
