"""Forgetting as configured."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from memory_extproc.settings.values import Positive, Section


class Forgetting(Section):
    ledger: str = Field(
        "",
        description="file that holds, as keyed hashes, what was forgotten; keep it out of backups, on another "
        "volume at best, so that a restored one brings nothing back; empty: erasure.db under data_dir; unused with "
        "coordination.url, where the ledger is in Redis",
    )
    signing_key: str = Field(
        "",
        description="PEM file with an Ed25519 private key that signs receipts (made by `openssl genpkey -algorithm "
        "ed25519`); empty: receipts are not signed",
    )
    server_purge: Positive = Field(
        timedelta(days=4),
        description="how long a Milvus server may keep deleted rows in its files and its log; a receipt is "
        "complete after it",
    )
