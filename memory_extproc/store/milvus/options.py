"""Options of the Milvus adapter."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from memory_extproc.settings.memory import Milvus

CONTENT_BYTES = 8 * 1024  # of UTF-8, where nothing else is configured


class Layout(StrEnum):
    AUTO = "auto"  # SINGLE at an address, SHARDED in a Lite file
    SINGLE = "single"  # one collection; the server prunes by partition key
    SHARDED = "sharded"  # several collections by hash of the owner, for Lite, which scans a collection whole


@dataclass(frozen=True, slots=True, kw_only=True)
class MilvusOptions:
    """The section of the configuration, with what stands elsewhere or is not configured."""

    section: Milvus
    fingerprint: str  # of the embedding model
    path: Path = Path("data/milvus.db")  # of a Lite file: a directory that milvus-lite makes
    encrypted: bool = False  # a full-text index of encrypted texts would be useless
    open_timeout: timedelta = timedelta(seconds=30)  # per step of opening: creating, indexing, loading
    content_bytes: int = CONTENT_BYTES  # per text in UTF-8; the rest is cut off
    as_it_is: bool = False  # read-only, with vectors of any model; never created
    flush_rows: int = 200  # Lite reads rows that are not flushed about a hundred times slower
    flush_idle: timedelta = timedelta(seconds=30)  # without a write, before a flush
    breaker_failures: int = 3  # in a row, before calls are refused
    breaker_pause: timedelta = timedelta(seconds=1)  # then a single call tests the store
    probe_every: timedelta = timedelta(seconds=2)  # while the store is open and not up

    @property
    def uri(self) -> str:
        """The address with its scheme; empty for a Lite file."""
        address = self.section.address
        if not address or "://" in address or address.startswith("unix:"):
            return address
        return ("https://" if self.section.tls.enabled else "http://") + address

    @property
    def place(self) -> str:
        """Where it is, for a log: without a user's name and password, which an address may hold."""
        return self.uri.rpartition("@")[2] or str(self.path)

    @property
    def chosen_layout(self) -> Layout:
        layout = Layout(self.section.layout)
        if layout is Layout.AUTO:
            return Layout.SINGLE if self.section.address else Layout.SHARDED
        return layout

    @property
    def full_text(self) -> bool:
        """Whether new collections get an index of words, where the other side has it."""
        return self.section.full_text and not self.encrypted
