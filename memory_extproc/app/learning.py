"""The write path as configured."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

from memory_extproc.app.live import Live
from memory_extproc.app.models import completions_for
from memory_extproc.learn.budget import Allowance, Budget, BudgetLimits
from memory_extproc.learn.extract import Extracts
from memory_extproc.learn.extractors import Fallback, Measured
from memory_extproc.learn.llm_extractor import LlmExtractor
from memory_extproc.learn.llm_judge import LlmJudge
from memory_extproc.learn.notepad import Noting
from memory_extproc.learn.reconcile import Judges
from memory_extproc.learn.rules_extractor import RulesExtractor
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Now
from memory_extproc.settings import Settings
from memory_extproc.settings.memory import ModelRole


@dataclass(frozen=True, slots=True)
class Extraction:
    """Who finds facts, who stands in while they cannot be reached, and who says what a fact changes where no rule
    does; each may be nobody."""

    extractor: Extracts | None = None
    stand_in: Extracts | None = None
    judges: Judges | None = None
    budget: Budget | None = None  # what models may cost, whatever they are asked
    by_rules_alone: bool = True  # or not at all


def make_extraction(
    settings: Settings, metrics: Metrics, stack: AsyncExitStack, budget: Budget, live: Live | None = None
) -> Extraction:
    """By a model, with the rules for the batches it cannot do; by the rules; or not at all."""
    wanted = settings.learn.extractor
    if wanted == "off":
        return Extraction(budget=budget)
    rules = Measured(RulesExtractor(), metrics, time.perf_counter)
    model = settings.model_for(ModelRole.MEMORY_EXTRACTION)
    if wanted == "rules" or model is None:
        return Extraction(rules, budget=budget)
    completions = completions_for(model, ModelRole.MEMORY_EXTRACTION, metrics, stack, live)
    found: Extracts = LlmExtractor(completions, budget)
    if settings.learn.notepad:
        found = Noting(found, completions, budget)
    by_model = Measured(found, metrics, time.perf_counter)
    judges = LlmJudge(completions, budget)
    if wanted == "llm":
        return Extraction(by_model, judges=judges, budget=budget, by_rules_alone=False)
    return Extraction(Fallback(by_model, rules), stand_in=rules, judges=judges, budget=budget, by_rules_alone=False)


def make_budget(settings: Settings, now: Now, live: Live) -> Budget:
    budget = Budget(budget_limits(settings), now=now)
    live.follow(lambda new: budget.use(budget_limits(new)))
    return budget


def budget_limits(settings: Settings) -> BudgetLimits:
    budget = settings.learn.model_tokens
    return BudgetLimits(
        caller=Allowance(budget.caller_hour, budget.caller_day),
        tenant=Allowance(budget.tenant_hour, budget.tenant_day),
        all=Allowance(budget.all_hour, budget.all_day),
    )
