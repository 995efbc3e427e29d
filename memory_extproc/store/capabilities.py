"""What the other side can do, read from its version. Never found out by trial: Milvus accepts what it does not
know and drops it silently, or dies of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from memory_extproc.errors import GiveUpError

_LITE = re.compile(r"milvus_lite-(\d+)\.(\d+)\.(\d+)")
_SERVER = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")
_OLDEST_SERVER = (2, 3, 0)
_OLDEST_LITE = (3, 0, 0)


@dataclass(frozen=True, slots=True)
class Capabilities:
    lite: bool  # Milvus Lite, in this process or as `milvus-lite server`
    version: tuple[int, int, int]

    @classmethod
    def of(cls, version: str) -> Self:
        """From what get_server_version returns. A server from PyPI calls itself v2.3.5-lite, so the word alone
        says nothing. GiveUpError for versions that are too old or no version."""
        for lite, pattern, oldest in ((True, _LITE, _OLDEST_LITE), (False, _SERVER, _OLDEST_SERVER)):
            match = pattern.match(version)
            if match is not None:
                major, minor, patch = (int(part or 0) for part in match.groups())
                if (major, minor, patch) < oldest:
                    raise GiveUpError(f"Milvus {version!r} is older than {'.'.join(map(str, oldest))}")
                return cls(lite=lite, version=(major, minor, patch))
        raise GiveUpError(f"a Milvus of the unknown version {version!r}")

    @property
    def exact_only(self) -> bool:
        """Lite's approximate indexes lose most of a filtered search's hits."""
        return self.lite

    @property
    def one_writer(self) -> bool:
        """Lite loses acknowledged rows when a collection has two writers at once."""
        return self.lite

    @property
    def lags(self) -> bool:
        """Reads miss fresh writes unless they ask for strong consistency. Lite's are always strong."""
        return not self.lite

    @property
    def bucket_pruning(self) -> bool:
        """Reads may name the partition of a partition key's value; a server refuses that and prunes itself."""
        return self.lite

    @property
    def full_text(self) -> bool:
        """New collections may have an index of words that fills itself. Older servers drop it silently."""
        return self.version >= ((3, 2, 0) if self.lite else (2, 5, 0))

    @property
    def upsert(self) -> bool:
        """Servers before 2.3.10 compute the partition of an upserted row from another field than the partition
        key (milvus-io/milvus#30607), and a filtered read never finds it; they need delete and insert."""
        return self.lite or self.version >= (2, 3, 10)
