"""The contents of a receipt, its readers, and its verification."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from memory_extproc.erasure.forgetter import Forgetter
from memory_extproc.erasure.receipts import ReceiptSigner, is_genuine, key_id, read_public, read_signer
from memory_extproc.errors import PermanentError
from tests.support.builders import ANN, BOB, OTHER_ANN, a_memory
from tests.unit.erasure.forgetting import EVERYTHING, World, complete
from tests.unit.learn.learning import until


async def test_a_receipt_is_shown_to_its_owner_alone(world: World, forgetter: Forgetter) -> None:
    receipt = await forgetter.forget(ANN, EVERYTHING)
    assert await forgetter.receipt(BOB, receipt.id) is None
    assert await forgetter.receipt(OTHER_ANN, receipt.id) is None
    assert await forgetter.receipt(ANN, "0" * 32) is None


async def test_when_a_server_purges_in_its_own_time_the_receipt_says_until_when(world: World) -> None:
    world.files.at_once = False
    world.forget_limits = replace(world.forget_limits, server_purge=timedelta(days=4))
    await world.put(a_memory("likes tea"))
    async with world.forgetter() as first:
        receipt = await first.forget(ANN, EVERYTHING)

        async def pends() -> bool:
            found = await first.receipt(ANN, receipt.id)
            return found is not None and any(one.pending_until for one in found.stores)

        await until(pends, "it says what is pending")
        told = await first.receipt(ANN, receipt.id)
        assert told is not None
        assert {one.store for one in told.stores if not one.done} == {"files"}
        assert {one.store: one.pending_until for one in told.stores}["files"] == world.now + timedelta(days=4)
        cleaned_at = world.now
        assert world.sample("forgets_pending") == 1
        world.now += timedelta(days=1)
        assert world.sample("forget_oldest_seconds") == 0, "it is on time"
    world.now += timedelta(days=3)
    async with world.forgetter() as second:
        receipt = await complete(second, receipt)
    assert receipt.completed_at == world.now
    done_at = {one.store: one.done_at for one in receipt.stores}
    assert done_at.pop("files") == world.now
    assert set(done_at.values()) == {cleaned_at}, "when they were done first, not when they were looked at again"
    assert world.sample("forgets_pending") == 0


async def test_a_signed_receipt_can_be_checked_and_a_changed_one_is_found(world: World) -> None:
    world.signer = ReceiptSigner(Ed25519PrivateKey.generate())
    async with world.forgetter() as forgetter:
        receipt = await complete(forgetter, await forgetter.forget(ANN, EVERYTHING))
    assert receipt.key_id == world.signer.key_id
    assert is_genuine(receipt.signed, receipt.signature, world.signer.public)
    assert not is_genuine(receipt.signed.replace(b"user", b"memo"), receipt.signature, world.signer.public)
    assert not is_genuine(receipt.signed, receipt.signature, Ed25519PrivateKey.generate().public_key())
    assert b"ann" not in receipt.signed
    assert json.loads(receipt.signed)["state"] == "complete"


def test_a_file_with_another_kind_of_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    for text in (b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"):
        path.write_bytes(text)
        with pytest.raises(PermanentError):
            read_signer(path)
    other = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(PermanentError):
        read_signer(path)
    with pytest.raises(PermanentError):
        read_public(path)
    mine = Ed25519PrivateKey.generate()
    path.write_bytes(mine.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    assert read_signer(path).key_id == key_id(read_public(path))
    path.write_bytes(mine.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    assert key_id(read_public(path)) == key_id(mine.public_key())
