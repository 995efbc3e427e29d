"""Parts read the settings in effect, so that a changed configuration counts without a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from memory_extproc.api.authentication import Credentials
from memory_extproc.api.call import RefusedError
from memory_extproc.app.api import _authenticator
from memory_extproc.app.context import AppContext, make_context
from memory_extproc.learn.extract.llm_client import OverBudgetError
from memory_extproc.model.headers import Headers
from memory_extproc.settings import Settings
from tests.support.builders import ANN
from tests.unit.request.test_identity_tokens import AUDIENCE, EC_KEY, ISSUER, document, jwk, signed


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


async def test_fewer_recalls_at_a_time_are_admitted_at_once(context: AppContext) -> None:
    change(context, recall={"max_concurrent": 3})
    assert context.load.limit == 3


async def test_tokens_for_another_audience_are_refused_though_they_were_believed(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(document(jwk(EC_KEY, kid="k1")))

    def settings(audience: str) -> Settings:
        section = {"jwks_file": str(keys), "algorithms": ["ES256"], "issuer": ISSUER, "audience": audience}
        return Settings.model_validate({"identity": {"jwt": section}})

    presented = Credentials("ipv4:10.0.0.1:1", Headers((("authorization", f"Bearer {signed()}"),)))
    async with AsyncExitStack() as stack:
        live = make_context(settings(AUDIENCE), stack).live
        authenticator = await _authenticator(live, stack, None)
        assert authenticator.principal(presented).user == "ann"
        live.reconfigure(live.merge(settings("another")))
        with pytest.raises(RefusedError):
            authenticator.principal(presented)
