"""The holder of a receipt can have it checked, and the memories searched for once more."""

from __future__ import annotations

import base64
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from memory_extproc.erasure.receipts import ReceiptFinding, ReceiptSigner, check_signature, look_again, read_proof
from memory_extproc.errors import PermanentError
from memory_extproc.model import Embedded, ForgetReceipt, ForgetScope
from tests.support.builders import ANN, BOB, a_memory
from tests.unit.erasure.forgetting import World, complete


def as_json(receipt: ForgetReceipt) -> bytes:
    shown = {name: base64.b64encode(getattr(receipt, name)).decode() for name in ("signed", "signature")}
    return json.dumps({"success": True, "receipt": shown}).encode()


async def test_a_receipt_is_checked_and_its_subject_looked_for_again() -> None:
    world = World(signer=ReceiptSigner(Ed25519PrivateKey.generate()))
    assert world.signer is not None
    memory = a_memory("likes tea")
    async with world.partitions, world.forgetter() as forgetter:
        await world.put(memory)
        receipt = await complete(forgetter, await forgetter.forget(ANN, ForgetScope()))
    proof = read_proof(as_json(receipt))
    check_signature(proof, world.signer.public)
    clean = await look_again(proof, ANN, world.forgotten, store=world.store, journal=world.journal)
    assert {look.verdict for look in clean} == {ReceiptFinding.CLEAN}
    (vector,) = await world.embedder.embed([memory.content])
    await world.store.put(ANN, [Embedded(memory, vector)])
    found = await look_again(proof, ANN, world.forgotten, store=world.store, journal=None)
    assert [(look.verdict, look.found) for look in found] == [
        (ReceiptFinding.FOUND, 1),
        (ReceiptFinding.NOT_LOOKED_AT, 0),
    ]
    world.weather.down = True
    (unreachable, _) = await look_again(proof, ANN, world.forgotten, store=world.store, journal=world.journal)
    assert unreachable.verdict is ReceiptFinding.NOT_LOOKED_AT
    with pytest.raises(PermanentError):
        await look_again(proof, BOB, world.forgotten, store=world.store, journal=world.journal)


async def test_a_receipt_of_another_key_or_without_a_signature_is_refused() -> None:
    world = World(signer=ReceiptSigner(Ed25519PrivateKey.generate()))
    async with world.partitions, world.forgetter() as forgetter:
        receipt = await forgetter.forget(ANN, ForgetScope())
    proof = read_proof(as_json(receipt))
    with pytest.raises(PermanentError):
        check_signature(proof, Ed25519PrivateKey.generate().public_key())
    world = World()
    async with world.partitions, world.forgetter() as forgetter:
        unsigned = await forgetter.forget(ANN, ForgetScope())
    with pytest.raises(PermanentError):
        check_signature(read_proof(as_json(unsigned)), Ed25519PrivateKey.generate().public_key())


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"signed": "!"}', b'{"signed": "e30="}', b'{"signed": "MQ=="}']
)
def test_what_is_no_receipt_is_refused(text: bytes) -> None:
    with pytest.raises(PermanentError):
        read_proof(text)
