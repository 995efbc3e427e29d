"""Forget receipts as canonical JSON, signed with Ed25519 (RFC 8032) and verifiable with the public key.

Canonical: keys sorted, no spaces, ASCII, times in UTC as RFC 3339 with microseconds. These bytes are signed."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from memory_extproc.erasure.tombstones import TombstoneIndex
from memory_extproc.errors import MemoryExtprocError, PermanentError
from memory_extproc.model import Erased, ForgetReceipt, Owner
from memory_extproc.ports import Journal, MemoryStore

VERSION = 1


class ReceiptSigner:
    """Signs receipts. *key_id* is the beginning of the public key's SHA-256: 16 hex digits."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key()
        self.key_id = key_id(self.public)

    def sign(self, receipt: ForgetReceipt) -> ForgetReceipt:
        body = canonical(receipt)
        return replace(receipt, signed=body, signature=self._key.sign(body), key_id=self.key_id)


def read_signer(path: Path) -> ReceiptSigner:
    """Read a signer from a PEM file with an unencrypted Ed25519 private key (PKCS 8); else PermanentError."""
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise PermanentError(f"{path} holds no private key in PEM ({type(error).__name__})") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise PermanentError(f"{path} holds a key of another kind than Ed25519")
    return ReceiptSigner(key)


def read_public(path: Path) -> Ed25519PublicKey:
    """Read the public key from a PEM file with a public or private key; else PermanentError."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise PermanentError(f"{path} cannot be read ({error.strerror})") from error
    if b"PRIVATE KEY" in text:
        return read_signer(path).public
    try:
        key = load_pem_public_key(text)
    except ValueError as error:
        raise PermanentError(f"{path} holds no public key in PEM") from error
    if not isinstance(key, Ed25519PublicKey):
        raise PermanentError(f"{path} holds a key of another kind than Ed25519")
    return key


def key_id(key: Ed25519PublicKey) -> str:
    return hashlib.sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()[:16]


def strip_signature(receipt: ForgetReceipt) -> ForgetReceipt:
    """*receipt* with the bytes that a signature would be over."""
    return replace(receipt, signed=canonical(receipt), signature=b"", key_id="")


def is_genuine(signed: bytes, signature: bytes, key: Ed25519PublicKey) -> bool:
    try:
        key.verify(signature, signed)
    except InvalidSignature:
        return False
    return True


def canonical(receipt: ForgetReceipt) -> bytes:
    """The receipt without *signed*, *signature* and *key_id*."""
    body = {
        "version": VERSION,
        "id": receipt.id,
        "state": receipt.state.value,
        "scope": receipt.scope,
        "subject": receipt.subject,
        "accepted_at": _time(receipt.accepted_at),
        "clean_at": _time(receipt.clean_at),
        "completed_at": _time(receipt.completed_at),
        "memories": receipt.memories,
        "stores": [_store(store) for store in receipt.stores],
    }
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _store(store: Erased) -> Mapping[str, Any]:
    return {
        "store": store.store,
        "state": "done" if store.done else "pending",
        "removed": store.removed,
        "done_at": _time(store.done_at),
        "pending_until": _time(store.pending_until),
        "note": store.note,
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


# Verification long after a forget: is the receipt genuine, and is the covered data still gone?

_PAGE = 500


class ReceiptFinding(StrEnum):
    CLEAN = "clean"
    FOUND = "found"  # something that was forgotten is there
    NOT_LOOKED_AT = "not_looked_at"


@dataclass(frozen=True, slots=True)
class Look:
    """The result for a store. *found*: entries covered by the owner's forgets."""

    store: str
    verdict: ReceiptFinding
    found: int = 0
    why: str = ""


class SignatureState(StrEnum):
    """Part of the API, so values are never renamed."""

    VALID = "valid"
    ALTERED = "altered"  # or signed with another key
    UNSIGNED = "unsigned"
    NO_KEY = "no_key"  # there is no key to check it with


@dataclass(frozen=True, slots=True)
class Proof:
    """A receipt as a client holds it."""

    body: Mapping[str, Any]
    signed: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Verification:
    """*looks*: None if the receipt belongs to another owner or installation."""

    signature: SignatureState
    body: Mapping[str, Any]
    looks: Sequence[Look] | None


def read_proof(text: bytes) -> Proof:
    """Parse the JSON of the API or of `memory forget --json`, alone or within the response. Else PermanentError."""
    try:
        given = json.loads(text)
        given = given.get("receipt", given)
        signed = base64.b64decode(given["signed"], validate=True)
        signature = base64.b64decode(given.get("signature", ""), validate=True)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise PermanentError("this is no receipt of a forget") from error
    return parse_proof(signed, signature)


def parse_proof(signed: bytes, signature: bytes) -> Proof:
    """Parse the signed bytes of a receipt. Else PermanentError."""
    try:
        body = json.loads(signed)
        if not isinstance(body["subject"], str) or not isinstance(body["state"], str):
            raise PermanentError("this is no receipt of a forget")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PermanentError("this is no receipt of a forget") from error
    return Proof(body, signed, signature)


def signature_state(proof: Proof, key: Ed25519PublicKey | None) -> SignatureState:
    if not proof.signature:
        return SignatureState.UNSIGNED
    if key is None:
        return SignatureState.NO_KEY
    genuine = is_genuine(proof.signed, proof.signature, key)
    return SignatureState.VALID if genuine else SignatureState.ALTERED


def check_signature(proof: Proof, key: Ed25519PublicKey) -> None:
    """PermanentError if the signature of the receipt does not match *key*."""
    if not proof.signature:
        raise PermanentError("the receipt is not signed")
    if not is_genuine(proof.signed, proof.signature, key):
        raise PermanentError(f"the receipt was not signed with the key {key_id(key)}, or was changed since")


async def look_again(
    proof: Proof, owner: Owner, forgotten: TombstoneIndex, *, store: MemoryStore | None, journal: Journal | None
) -> Sequence[Look]:
    """Search the stores directly, bypassing the tombstone filter. None: unreachable.

    PermanentError if the receipt belongs to another owner."""
    blind = await forgotten.blind()
    if blind.subject(owner) != proof.body["subject"]:
        raise PermanentError("the receipt is about somebody else, or another installation gave it")
    marks = await forgotten.of(owner)

    async def rows() -> int:
        found = 0
        if store is not None:
            async for page in store.pages(owner, _PAGE, fresh=True):
                found += sum(marks.covers(row.memory) for row in page)
        return found

    async def turns() -> int:
        if journal is None:
            return 0
        return sum([marks.covers_turn(entry.turn) async for entry in journal.of_owner(owner)])

    return [
        await _look("memories", rows if store is not None else None),
        await _look("journal", turns if journal is not None else None),
    ]


async def _look(name: str, count: Callable[[], Awaitable[int]] | None) -> Look:
    if count is None:
        return Look(name, ReceiptFinding.NOT_LOOKED_AT, why="it cannot be reached, or a running sidecar holds it")
    try:
        found = await count()
    except MemoryExtprocError as error:
        return Look(name, ReceiptFinding.NOT_LOOKED_AT, why=str(error))
    return Look(name, ReceiptFinding.FOUND if found else ReceiptFinding.CLEAN, found)
