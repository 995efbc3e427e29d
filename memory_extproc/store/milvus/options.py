"""Options of the Milvus adapter. Plain values; settings hold the defaults of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

CONTENT_BYTES = 8 * 1024  # of UTF-8, where nothing else is configured


class Layout(StrEnum):
    AUTO = "auto"  # SINGLE at an address, SHARDED in a Lite file
    SINGLE = "single"  # one collection; the server prunes by partition key
    SHARDED = "sharded"  # several collections by hash of the owner, for Lite, which scans a collection whole


@dataclass(frozen=True, slots=True, kw_only=True)
class MilvusOptions:
    collection: str
    dimension: int
    fingerprint: str  # of the embedding model
    address: str = ""  # host:port or a URI; empty: a Lite file at *path*
    path: Path = Path("data/milvus.db")  # a directory that milvus-lite makes
    layout: Layout = Layout.AUTO
    shards: int = 16  # of a new Lite file; an existing file keeps its number
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    database: str = ""
    tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_server_name: str = ""
    full_text: bool = True  # an index of words in new collections, where the other side has it
    timeout: timedelta = timedelta(seconds=1)  # per call
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
        """*address* with its scheme; empty for a Lite file."""
        if not self.address or "://" in self.address or self.address.startswith("unix:"):
            return self.address
        return ("https://" if self.tls else "http://") + self.address

    @property
    def place(self) -> str:
        """Where it is, for a log: without a user's name and password, which an address may hold."""
        return self.uri.rpartition("@")[2] or str(self.path)

    @property
    def chosen_layout(self) -> Layout:
        if self.layout is Layout.AUTO:
            return Layout.SINGLE if self.address else Layout.SHARDED
        return self.layout
