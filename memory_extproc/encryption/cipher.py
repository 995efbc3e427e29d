"""Authenticated encryption of a text: AES-256-GCM under its owner's data key, bound to its context.

The nonce is an HMAC of key, context and text (synthetic, as in RFC 8452): equal texts in the same context give
equal bytes, so that a retry is recognised, and a nonce repeats only with the same message."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from memory_extproc.errors import PermanentError
from memory_extproc.model import DataKey

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
