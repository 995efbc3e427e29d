"""Master keys out of a file: the first wraps, every one of them unwraps. Another place for them (a key management
service) is another WrapsKeys."""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
import stat
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from memory_extproc.errors import ConfigurationError, GiveUpError, TryLaterError
from memory_extproc.observe.log import logger

log = logger(__name__)
KEY_BYTES = 32
_NONCE_BYTES = 12
_NAME_BYTES = 8  # of a key's name
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Unusable(StrEnum):
    """Why a changed file is not taken. Also the field of the log event."""

    UNREADABLE = "unreadable"
    NO_KEYS = "no_keys"
    OTHER_KEYS = "other_keys"  # none of those in use


class UnknownMasterKeyError(TryLaterError):
    """Data keys were wrapped with a master key that is not at hand; once it is, the same call works."""


def new_master_key() -> str:
    """A line for the file."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def name_of(key: bytes) -> str:
    """16 hex digits that tell keys apart and tell nothing of them."""
    return hashlib.sha256(b"memory-extproc master key\0" + key).digest()[:_NAME_BYTES].hex()


class MasterKeyFile:
    """WrapsKeys over a file with a key of 32 bytes in Base64 on each line, `#` before a comment. It is read again
    when it has changed, so that a rotation needs no restart. A changed file that cannot be used, or has none of the
    keys in use, is not taken: what a mistaken key wrapped would be lost with it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = -1
        self._keys: Mapping[str, bytes] = {}
        self._unusable: Unusable | None = None  # as it was last told
        self._read()

    @property
    def name(self) -> str:
        self._read()
        return next(iter(self._keys))

    @property
    def names(self) -> tuple[str, ...]:
        """Of all keys, the one that wraps first."""
        self._read()
        return tuple(self._keys)

    @property
    def open_to_others(self) -> bool:
        """Whether more than the file's owner may read it."""
        return bool(self._path.stat().st_mode & _OTHERS)

    async def wrap(self, key: bytes, context: bytes) -> bytes:
        return _wrapped(self._keys[self.name], key, context)

    async def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        name = _master_of(wrapped)
        if name not in self._keys:
            self._read()
        master = self._keys.get(name)
        if master is None:
            raise UnknownMasterKeyError(
                f"a data key is wrapped with the master key {name}, which {self._path} does not hold "
                f"(it holds {', '.join(self._keys)}): add it there as a further line"
            )
        return _unwrapped(master, wrapped, context)

    def _read(self) -> None:
        """ConfigurationError where the file cannot be used; once it was, what it held stays in use until then."""
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


class TransientMaster:
    """WrapsKeys with a key of its own that ends with the process. For tests and demonstrations."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(KEY_BYTES)

    @property
    def name(self) -> str:
        return name_of(self._key)

    async def wrap(self, key: bytes, context: bytes) -> bytes:
        return _wrapped(self._key, key, context)

    async def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        if _master_of(wrapped) != self.name:
            raise UnknownMasterKeyError(f"a data key is wrapped with the master key {_master_of(wrapped)}")
        return _unwrapped(self._key, wrapped, context)


def _wrapped(master: bytes, key: bytes, context: bytes) -> bytes:
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return bytes.fromhex(name_of(master)) + nonce + AESGCM(master).encrypt(nonce, key, context)


def _unwrapped(master: bytes, wrapped: bytes, context: bytes) -> bytes:
    nonce, rest = wrapped[_NAME_BYTES : _NAME_BYTES + _NONCE_BYTES], wrapped[_NAME_BYTES + _NONCE_BYTES :]
    try:
        return AESGCM(master).decrypt(nonce, rest, context)
    except (InvalidTag, ValueError):
        raise GiveUpError("a wrapped data key that was damaged or moved") from None


def _master_of(wrapped: bytes) -> str:
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
