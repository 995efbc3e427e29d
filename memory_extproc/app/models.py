"""The models as configured: embedding, reranking, language models at an endpoint."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import timedelta
from pathlib import Path

from pydantic import SecretStr

from memory_extproc.app.context import AppContext
from memory_extproc.errors import ConfigurationError
from memory_extproc.inference.model_files import Precision, find_directory
from memory_extproc.inference.onnx import open_cross_encoder, open_onnx_embedder
from memory_extproc.inference.sentence_transformers import open_sentence_transformers_embedder
from memory_extproc.inference.word_hashing import WordHashEmbedder
from memory_extproc.observe.log import logger
from memory_extproc.ports import CompletionModel, EmbeddingModel, RerankModel
from memory_extproc.recall.rerank import LlmReranker
from memory_extproc.settings import Settings
from memory_extproc.settings.memory import Embedding, ModelRole, Provider

log = logger(__name__)

_NO_MODEL = (
    "no embedding model is installed, so memories are found by their words alone: "
    "pip install memory-extproc-minilm, or `memory-extproc models prepare`, then `memory-extproc store reembed`"
)


async def open_embedder(context: AppContext) -> EmbeddingModel:
    """Open the configured embedding model."""
    embedding = context.settings.memory.embedding
    embedder: EmbeddingModel
    match embedding.provider:
        case Provider.ONNX:
            embedder = await _local_embedder(context)
        case Provider.SENTENCE_TRANSFORMERS:
            device = "" if embedding.device == "auto" else embedding.device
            opened = open_sentence_transformers_embedder(embedding.model, device, embedding)
            embedder = await context.stack.enter_async_context(opened)
        case Provider.OPENAI:
            embedder = _remote_embedder(context)
    if embedder.dimension != embedding.dimension:
        fault = f"is {embedding.dimension}, but {embedding.model} gives vectors of {embedder.dimension}"
        raise ConfigurationError([f"memory.embedding.dimension: {fault}"])
    return embedder


async def _local_embedder(context: AppContext) -> EmbeddingModel:
    """The local model, or words alone if none is configured or installed.

    ModelDirectoryError if a configured model is missing."""
    embedding, usual = context.settings.memory.embedding, Embedding()
    directory = find_directory(Path(embedding.models_dir), embedding.model, Precision(embedding.precision))
    unnamed = all(getattr(embedding, key) == getattr(usual, key) for key in ("models_dir", "model", "precision"))
    if unnamed and not directory.is_dir():
        log.warning("embedding.words_alone", remedy=_NO_MODEL)
        return WordHashEmbedder(embedding.dimension)
    return await context.stack.enter_async_context(open_onnx_embedder(directory, embedding))


def _remote_embedder(context: AppContext) -> EmbeddingModel:
    live, embedding = context.live, context.settings.memory.embedding
    # Imported only if configured, here and below: OpenAI's client takes 0.4 s and 30 MB, Redis's 0.2 s.
    from memory_extproc.inference.openai_client import EndpointLimits, ModelEndpoint  # noqa: PLC0415
    from memory_extproc.inference.openai_models import OpenAIEmbedder, longest_answer  # noqa: PLC0415

    endpoint = ModelEndpoint(
        EndpointLimits(
            base_url=embedding.endpoint,
            timeout=embedding.timeout,
            # A waiting request has no time for a second attempt, and an attempt cancelled in between would tell the
            # breaker nothing; the learner retries by itself.
            attempts=1,
            longest_answer=longest_answer(embedding.dimension),
        ),
        role="embedding",
        marker="embedding",
        metrics=context.metrics,
        rng=random.random,
        clock=time.monotonic,
        access_key=lambda: live.settings.memory.embedding.access_key,
    )
    remote = OpenAIEmbedder(endpoint, embedding)
    context.stack.push_async_callback(remote.close)
    return remote


async def open_reranks(context: AppContext) -> RerankModel | None:
    """Open the reranker. ModelDirectoryError if the configured cross-encoder was not prepared."""
    recall, embedding = context.settings.recall, context.settings.memory.embedding
    if recall.rerank == "cross_encoder":
        directory = find_directory(Path(embedding.models_dir), recall.rerank_model, Precision(embedding.precision))
        return await context.stack.enter_async_context(open_cross_encoder(directory, embedding.threads))
    completions = completions_for(context, ModelRole.MEMORY_RERANK) if recall.rerank == "llm" else None
    return None if completions is None else LlmReranker(completions)


def completions_for(context: AppContext, role: ModelRole) -> CompletionModel | None:
    """Open the language model of a role, which all users of the role share; None without a model."""
    live, stack = context.live, context.stack
    model = live.settings.model_for(role)
    if model is None:
        return None
    if (known := live.models.get((role, model.model_role))) is not None:
        return known
    from memory_extproc.inference.openai_client import EndpointLimits, ModelEndpoint  # noqa: PLC0415
    from memory_extproc.inference.openai_models import OpenAICompletions  # noqa: PLC0415

    endpoint = ModelEndpoint(
        EndpointLimits(
            base_url=model.llm_endpoint.url,
            timeout=timedelta(seconds=model.llm_timeout_seconds),
            # The read path has no time for a second attempt, and continues without the model.
            attempts=1 if role in {ModelRole.MEMORY_REWRITE, ModelRole.MEMORY_RERANK} else 3,
        ),
        role=role.value,
        marker=role.value,
        metrics=context.metrics,
        rng=random.random,
        clock=time.monotonic,
        access_key=lambda: _access_key(live.settings, role),
    )
    completions = OpenAICompletions(endpoint, model)
    stack.push_async_callback(completions.close)
    if context.probes and all(known is not model.model_role for _, known in live.models):
        probe = asyncio.create_task(completions.probe(), name="probe of a language model")
        stack.push_async_callback(asyncio.wait, {probe})
        stack.callback(probe.cancel)
    live.models[role, model.model_role] = completions
    return completions


def _access_key(settings: Settings, role: ModelRole) -> SecretStr:
    model = settings.model_for(role)
    return SecretStr("") if model is None else model.llm_endpoint.access_key
