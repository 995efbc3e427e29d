"""Only kinds of records that are registered are kept: a forget erases by the registry (model/records.py)."""

from __future__ import annotations

from collections.abc import Iterable

from memory_extproc.errors import GiveUpError
from memory_extproc.model import RECORD_KINDS


def check_registered(kinds: Iterable[str]) -> None:
    for kind in kinds:
        if kind not in RECORD_KINDS:
            raise GiveUpError(f"records of the kind {kind!r} are not registered in model/records.py")
