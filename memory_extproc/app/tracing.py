"""Traces and tags as configured."""

from __future__ import annotations

import secrets
from contextlib import AsyncExitStack

from memory_extproc import __version__
from memory_extproc.observe.log import CallerTag
from memory_extproc.observe.tracing import NO_TRACES, Traces
from memory_extproc.settings import Settings


async def open_traces(settings: Settings, stack: AsyncExitStack) -> Traces:
    telemetry = settings.telemetry
    if not telemetry.otlp_endpoint:
        return NO_TRACES
    from memory_extproc.observe.otlp import OtlpOptions, OtlpTraces  # noqa: PLC0415 - where it is configured

    options = OtlpOptions(
        endpoint=telemetry.otlp_endpoint,
        version=__version__,
        share=telemetry.trace_share,
        content=telemetry.content,
    )
    return await stack.enter_async_context(OtlpTraces(options))


def caller_tag(settings: Settings) -> CallerTag:
    """With the key that an operator holds, where there is one; else with one that ends with the process."""
    return CallerTag(settings.privacy.hash_key.get_secret_value().encode() or secrets.token_bytes(32))
