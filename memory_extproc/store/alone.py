"""An owner's partition in the hands of one caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from memory_extproc.model import Memory


@dataclass(frozen=True, slots=True, eq=False)
class Alone:
    """Good as long as the owner's other writes are held off."""

    unstored: Callable[[], Sequence[Memory]]  # written by us, and perhaps not in the store yet
    withdraw: Callable[[Sequence[str]], None]  # of them, as if they had never been written
    delete: Callable[[Sequence[str]], Awaitable[None]]
    delete_all: Callable[[], Awaitable[None]]
