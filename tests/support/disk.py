"""A disk without room, as the kernel tells a process of it."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_room(size: int = 1) -> Iterator[None]:
    """No file of this process grows beyond *size* bytes: a write that would takes as much as fits, and the next one
    is refused, as on a disk that fills up. Log lines may go to a file, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
