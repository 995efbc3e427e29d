"""Requests that the OpenAPI document allows are answered as it says, and none that it forbids makes the server
fail."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.core.failures import FailureGroup

from tests.support.rest import USER, RestStand

pytestmark = [pytest.mark.envoy, pytest.mark.long]

EXAMPLES = 12  # of each operation and kind; more find little and take long


def tried(operation: Any, mode: schemathesis.GenerationMode, base_url: str) -> list[str]:
    """Calls the operation with what hypothesis makes of its schema; what came back wrong."""
    wrong: list[str] = []

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def call(case: Any) -> None:
        response = case.call(base_url=base_url, headers={USER: "ann"}, timeout=20)
        if response.status_code >= 500:
            wrong.append(f"{operation.label}: {response.status_code} {response.text[:300]}")
            return
        streamed = operation.path.endswith(":export")
        if response.status_code == 200 and not streamed:
            try:
                case.validate_response(response, checks=[schemathesis.checks.response_schema_conformance])
            except FailureGroup as error:
                wrong.append(f"{operation.label}: {error.exceptions}")

    call()
    return wrong


def takes_something(operation: Any) -> bool:
    """What takes nothing cannot be asked wrongly."""
    raw = operation.definition.raw
    return bool(raw.get("parameters") or raw.get("requestBody"))


async def test_the_api_keeps_to_its_document(rest: RestStand) -> None:
    rest.changes = {"api": {"rate": {"per_second": 100_000, "burst": 100_000}}, "trace": {"keep": "1h"}}
    await rest.start()
    _, text = await rest.http("/openapi.json")
    schema = schemathesis.openapi.from_dict(json.loads(text))
    found: Any = schema.get_all_operations()
    operations = [one.ok() for one in found]
    assert len(operations) >= 15
    for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
        for operation in operations:
            if mode is schemathesis.GenerationMode.NEGATIVE and not takes_something(operation):
                continue
            assert await asyncio.to_thread(tried, operation, mode, rest.url) == []
