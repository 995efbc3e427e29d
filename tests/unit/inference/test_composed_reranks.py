"""The reranker is the configured one."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from memory_extproc.app import open_reranks
from memory_extproc.app.context import make_context
from memory_extproc.inference.model_files import ModelDirectoryError, ModelKind, Precision
from memory_extproc.inference.onnx import CrossEncoder
from memory_extproc.inference.prepare import parse_source, prepare
from memory_extproc.ports import RerankModel
from memory_extproc.recall.rerank import LlmReranker
from memory_extproc.settings.loading import load
from tests.support.tiny_bert import write_tiny_bert

AT = '{"address": "127.0.0.1", "port": 1}'
MODEL = f'[{{"model_role": "memory_extraction", "llm_model_name": "m", "llm_endpoint": {AT}}}]'


async def opened(stack: AsyncExitStack, rerank: str, models_dir: Path) -> RerankModel | None:
    environ = {
        "MEMORY_EXTPROC__RECALL__RERANK": rerank,
        "MEMORY_EXTPROC__RECALL__RERANK_MODEL": "tiny",
        "MEMORY_EXTPROC__MEMORY__EMBEDDING__MODELS_DIR": str(models_dir),
        "MEMORY_EXTPROC__EXTERNAL_MODELS": MODEL,
    }
    return await open_reranks(make_context(load(None, environ), stack))


async def test_each_word_of_the_setting_has_its_reranker(tmp_path: Path) -> None:
    source = parse_source(str(write_tiny_bert(tmp_path / "tiny", classes=1)))
    prepare(
        source, Precision.INT8, tmp_path / "models", kind=ModelKind.CROSS_ENCODER, force=False, say=lambda _: None
    )
    async with AsyncExitStack() as stack:
        assert await opened(stack, "off", tmp_path / "models") is None
        encoder = await opened(stack, "cross_encoder", tmp_path / "models")
        assert isinstance(encoder, CrossEncoder)
        assert len(await encoder.rerank("1", ["1", "2"])) == 2
        assert isinstance(await opened(stack, "llm", tmp_path / "models"), LlmReranker)


async def test_a_cross_encoder_that_was_not_prepared_is_named_with_the_remedy(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        with pytest.raises(
            ModelDirectoryError, match=r"tiny-int8: run `memory-extproc models prepare --kind cross-encoder`"
        ):
            await opened(stack, "cross_encoder", tmp_path)
