"""Parts read the settings in effect, so that a changed configuration counts without a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from memory_extproc.app.context import AppContext, make_context
from memory_extproc.learn.extract.llm_client import OverBudgetError
from memory_extproc.settings import Settings
from tests.support.builders import ANN


@pytest.fixture
async def context() -> AsyncIterator[AppContext]:
    async with AsyncExitStack() as stack:
        yield make_context(Settings(), stack)


def change(context: AppContext, **sections: Any) -> None:
    context.live.reconfigure(context.live.merge(Settings.model_validate(sections)))


async def test_fewer_tokens_for_language_models_count_from_the_next_call_on(context: AppContext) -> None:
    context.budget.spend(ANN, 100)
    context.budget.admit(ANN)
    change(context, learn={"model_tokens": {"caller_hour": 100}})
    with pytest.raises(OverBudgetError):
        context.budget.admit(ANN)
