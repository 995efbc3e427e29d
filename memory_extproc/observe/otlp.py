"""Traces for an OpenTelemetry collector, over OTLP and gRPC. Imported where they are configured."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Self

from cachetools import LRUCache
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler, SamplingResult, TraceIdRatioBased
from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from memory_extproc.model import Owner
from memory_extproc.observe.log import Field, Span, TraceParent, Traces, Work, following

EXPORT_SECONDS = 5.0  # the timeout of an export
KEPT = 10_000  # turns whose exchange is known until they are learned


class OtlpTraces(Traces):
    """Exports spans while entered; leaving exports the rest within the timeout of an export.

    A background thread exports: an unreachable collector does not delay requests, and spans are dropped."""

    def __init__(
        self,
        endpoint: str,
        version: str,
        *,
        share: float = 1.0,
        content: bool = False,
        ended: SpanProcessor | None = None,
    ) -> None:
        """*endpoint*: http(s)://host:port. *version*: ours, as the resource says it. *share*: 0 to 1, of the
        exchanges that come without a trace. *content*: spans contain user text. *ended*: receives finished spans;
        None: they are exported to the collector."""
        self._content = content
        self._kept: LRUCache[str, SpanContext] = LRUCache(KEPT)
        self._provider = TracerProvider(
            sampler=_OrLinked(TraceIdRatioBased(share)),
            resource=Resource.create({"service.name": "memory-extproc", "service.version": version}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(ended or _sending(endpoint))
        self._tracer = self._provider.get_tracer("memory_extproc", version)
        self._propagator = TraceContextTextMapPropagator()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._provider.shutdown)

    def exchange(self, traceparent: str) -> Span:
        parent = self._propagator.extract({"traceparent": traceparent}, Context())
        return _OtlpSpan(self._tracer.start_span("memory.exchange", parent, SpanKind.SERVER))

    def stage(self, name: str) -> AbstractContextManager[None]:
        if not trace.get_current_span().get_span_context().is_valid:
            return nullcontext()  # an operator's question: no exchange
        return _child(self._tracer, f"memory.{name}")

    def show(self, **texts: str) -> None:
        if self._content:
            trace.get_current_span().set_attributes(
                _prefix_names({name: text for name, text in texts.items() if text})
            )

    def keep(self, turn_id: str) -> None:
        context = trace.get_current_span().get_span_context()
        if not (context.is_valid and context.trace_flags.sampled):
            return
        self._kept[turn_id] = context

    def trace_step(self, name: str, work: Work) -> Work:
        async def step(owner: Owner, jobs: Sequence[Any]) -> None:
            turns = [turn for job in jobs for turn in ([job] if isinstance(job, str) else job)]
            links = [Link(self._kept[turn]) for turn in turns if turn in self._kept]
            with following(None):
                if not links:  # from an earlier process, or from unsampled exchanges
                    await work(owner, jobs)
                    return
                with _child(self._tracer, f"memory.{name}", Context(), links, turns=len(turns)):
                    await work(owner, jobs)

        return step


def _sending(endpoint: str) -> SpanProcessor:
    plain = endpoint.startswith("http://")
    return BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, insecure=plain, timeout=EXPORT_SECONDS))


class _OrLinked(ParentBased):
    """Samples like the parent, or by ratio; links to a sampled span are sampled too."""

    def __init__(self, root: Sampler) -> None:
        super().__init__(root)

    def should_sample(self, *given: Any, **named: Any) -> SamplingResult:
        """As `Sampler.should_sample`; the links are its sixth argument."""
        links = named.get("links") or (given[5] if len(given) > _LINKS else None)
        if links:
            return ALWAYS_ON.should_sample(*given, **named)
        return super().should_sample(*given, **named)


_LINKS = 5


@contextmanager
def _child(
    tracer: Tracer, name: str, context: Context | None = None, links: Sequence[Link] = (), **fields: Field
) -> Iterator[None]:
    # Exceptions are not recorded: their texts may quote user text.
    with tracer.start_as_current_span(
        name,
        context,
        attributes=_prefix_names(fields),
        links=links,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except BaseException as error:  # includes cancellation, which is recorded on the span
            span.set_status(StatusCode.ERROR, type(error).__name__)
            raise


def _prefix_names(fields: Mapping[str, Field]) -> dict[str, Field]:
    return {f"memory.{name}": value for name, value in fields.items()}


class _OtlpSpan(Span):
    def __init__(self, span: trace.Span) -> None:
        self._span = span
        context = span.get_span_context()
        self.trace = TraceParent(f"{context.trace_id:032x}", context.trace_flags.sampled)

    @contextmanager
    def active(self) -> Iterator[None]:
        with trace.use_span(self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
            yield

    def note(self, **fields: Field) -> None:
        self._span.set_attributes(_prefix_names(fields))

    def end(self) -> None:
        self._span.end()
