"""The write path as configured."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack

from memory_extproc.app.models import completions_for
from memory_extproc.learn.extract import Extracts
from memory_extproc.learn.extractors import Fallback, Measured
from memory_extproc.learn.llm_extractor import LlmExtractor
from memory_extproc.learn.rules_extractor import RulesExtractor
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings import Settings
from memory_extproc.settings.memory import ModelRole


def make_extractor(settings: Settings, metrics: Metrics, stack: AsyncExitStack) -> Extracts | None:
    """By a model, with the rules for the batches it cannot do; by the rules; or not at all."""
    wanted = settings.learn.extractor
    if wanted == "off":
        return None
    rules = Measured(RulesExtractor(), metrics, time.perf_counter)
    model = settings.model_for(ModelRole.MEMORY_EXTRACTION)
    if wanted == "rules" or model is None:
        return rules
    completions = completions_for(model, ModelRole.MEMORY_EXTRACTION, metrics, stack)
    by_model = Measured(LlmExtractor(completions), metrics, time.perf_counter)
    return by_model if wanted == "llm" else Fallback(by_model, rules)
