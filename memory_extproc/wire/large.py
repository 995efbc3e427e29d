"""Work that grows with a body: of a small one done at once, of a large one beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# Characters or bytes. Up to here the dearest of it, finding the messages behind ten thousand tools, takes some
# ten milliseconds; from here on the hundred microseconds that a thread costs do not show.
LARGE = 96 * 1024


async def off_loop(size: int, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What *work* returns or raises; *size* is that of what it reads. Other streams go on meanwhile, so *work*
    must not touch what they may change. When the caller is cancelled a thread's work ends by itself."""
    if size < LARGE:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)
