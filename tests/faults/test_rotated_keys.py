"""A key that was rotated in the configuration is sent with the next call to a model."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from memory_extproc.app.context import make_context
from memory_extproc.app.models import completions_for, open_embedder
from memory_extproc.settings import Settings
from memory_extproc.settings.memory import ModelRole
from tests.support.endpoint import a_completion, serving
from tests.support.faults import a_model, embeddings


def settings(**sections: Any) -> Settings:
    return Settings.model_validate(sections)


async def test_a_rotated_key_of_an_endpoint_is_sent_with_the_next_call() -> None:
    async with serving(embeddings(384)) as endpoint, AsyncExitStack() as stack:
        openai = {"provider": "openai", "endpoint": endpoint.base_url, "timeout": "30s"}

        def memory(key: str) -> dict[str, Any]:
            return {"embedding": {**openai, "access_key": key}}

        context = make_context(settings(memory=memory("old")), stack)
        embedder = await open_embedder(context)
        for key in ("old", "new"):
            context.live.reconfigure(context.live.merge(settings(memory=memory(key))))
            await embedder.embed(["tea"])
    assert [headers["authorization"] for headers in endpoint.headers] == ["Bearer old", "Bearer new"]


async def test_a_rotated_key_of_a_language_model_is_sent_with_the_next_call() -> None:
    async with serving([a_completion("x"), a_completion("x")]) as endpoint, AsyncExitStack() as stack:
        models = {key: [a_model(endpoint, llm_timeout_seconds=30)] for key in ("old", "new")}
        for key, (model,) in models.items():
            model["llm_endpoint"]["access_key"] = key
        context = make_context(settings(external_models=models["old"]), stack)
        completions = completions_for(context, ModelRole.MEMORY_EXTRACTION)
        assert completions is not None
        for changed in models.values():
            context.live.reconfigure(context.live.merge(settings(external_models=changed)))
            await completions.complete("", "")
    assert [headers["authorization"] for headers in endpoint.headers] == ["Bearer old", "Bearer new"]
