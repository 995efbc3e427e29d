"""Looks again, long after a forget: is its receipt genuine, and is what it covers still nowhere?"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from memory_extproc.erasure.forgotten import Forgotten
from memory_extproc.erasure.receipts import is_genuine, key_id
from memory_extproc.errors import GiveUpError, MemoryExtprocError
from memory_extproc.model import Owner
from memory_extproc.ports import Journal, MemoryStore

_PAGE = 500


class Verdict(StrEnum):
    CLEAN = "clean"
    FOUND = "found"  # something that was forgotten is there
    NOT_LOOKED_AT = "not_looked_at"


@dataclass(frozen=True, slots=True)
class Look:
    """What was found in one place. *found*: how many entries that the forgets of this owner cover."""

    store: str
    verdict: Verdict
    found: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Proof:
    """A receipt as a client holds it."""

    body: Mapping[str, Any]
    signed: bytes
    signature: bytes


def read_proof(text: bytes) -> Proof:
    """Of the JSON that the API or `memory forget --json` gives; also of the whole answer around it. GiveUpError if
    it is none."""
    try:
        given = json.loads(text)
        given = given.get("receipt", given)
        signed = base64.b64decode(given["signed"], validate=True)
        signature = base64.b64decode(given.get("signature", ""), validate=True)
        body = json.loads(signed)
        if not isinstance(body["subject"], str) or not isinstance(body["state"], str):
            raise GiveUpError("this is no receipt of a forget")
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise GiveUpError("this is no receipt of a forget") from error
    return Proof(body, signed, signature)


def check_signature(proof: Proof, key: Ed25519PublicKey) -> None:
    """GiveUpError where the receipt is not what that key signed."""
    if not proof.signature:
        raise GiveUpError("the receipt is not signed")
    if not is_genuine(proof.signed, proof.signature, key):
        raise GiveUpError(f"the receipt was not signed with the key {key_id(key)}, or was changed since")


async def look_again(
    proof: Proof,
    owner: Owner,
    forgotten: Forgotten,
    *,
    store: MemoryStore | None,
    journal: Journal | None,
) -> Sequence[Look]:
    """In the stores themselves, past everything that hides. None: it cannot be reached. GiveUpError where the
    receipt is about somebody else."""
    blind = await forgotten.blind()
    if blind.subject(owner) != proof.body["subject"]:
        raise GiveUpError("the receipt is about somebody else, or another installation gave it")
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
        return Look(name, Verdict.NOT_LOOKED_AT, why="it cannot be reached, or a running sidecar holds it")
    try:
        found = await count()
    except MemoryExtprocError as error:
        return Look(name, Verdict.NOT_LOOKED_AT, why=str(error))
    return Look(name, Verdict.FOUND if found else Verdict.CLEAN, found)
