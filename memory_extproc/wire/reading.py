"""From the bytes of a request's body to what it asks, without our blocks that came back in it."""

from __future__ import annotations

from dataclasses import replace

from memory_extproc.dialect.base import ChatRequest, apply
from memory_extproc.dialect.controls import removals
from memory_extproc.errors import BadBodyError
from memory_extproc.model import Outcome
from memory_extproc.observe.log import logger
from memory_extproc.recall.block import without_blocks
from memory_extproc.wire.admission import Admitted
from memory_extproc.wire.coding import OversizeError, packed, unpack
from memory_extproc.wire.enriched import Enriched
from memory_extproc.wire.large import off_loop

log = logger(__name__)


async def read_body(admitted: Admitted, body: bytes, limit: int) -> ChatRequest | Enriched:
    """Enriched: what becomes of a body that cannot be read, or that has more than *limit* bytes, unpacked too."""
    if len(body) > limit:
        return Enriched(outcome=Outcome.TOO_LARGE)
    try:
        # What is packed is small until it is unpacked.
        size = limit if packed(admitted.encoding) else len(body)
        plain = await off_loop(size, unpack, admitted.encoding, body, limit)
    except OversizeError:
        return Enriched(outcome=Outcome.TOO_LARGE)
    except BadBodyError as error:
        return _unreadable(admitted, error)
    try:
        return await read_plain(admitted, plain)
    except BadBodyError as error:
        return await off_loop(len(plain), _unreadable, admitted, error, plain)


async def read_plain(admitted: Admitted, plain: bytes) -> ChatRequest:
    """BadBodyError for what is no request of its dialect."""
    return await off_loop(len(plain), _written, admitted, plain)


def _written(admitted: Admitted, plain: bytes) -> ChatRequest:
    return _as_said(admitted.dialect.read(plain))


def _as_said(request: ChatRequest) -> ChatRequest:
    """*request* with what people said, and none of our blocks that came back in it."""
    asked = without_blocks(request.asked)
    history = tuple(
        message if (text := without_blocks(message.text)) is message.text else replace(message, text=text)
        for message in request.history
    )
    return replace(request, asked=asked, history=history)


def _unreadable(admitted: Admitted, error: BadBodyError, plain: bytes = b"") -> Enriched:
    """The body goes on as it came, but for fields of ours in it: no upstream knows those, read or not."""
    log.info("request.unreadable", dialect=admitted.dialect.name, detail=str(error))
    edits = removals(plain)
    if not edits:
        return Enriched(outcome=Outcome.BAD_BODY)
    return Enriched(outcome=Outcome.BAD_BODY, body=apply(plain, edits), unpacked=packed(admitted.encoding))
