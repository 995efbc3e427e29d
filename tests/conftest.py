from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

# How long an example takes says something of the machine and what else it does, and nothing of the product.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

pytest_plugins = ["tests.fixtures.models", "tests.fixtures.redis"]


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """A command configures the log for its process, which here is every test's."""
    known, root = structlog.get_config(), logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.configure(**known)
    root.handlers[:] = [one for one in root.handlers if one in handlers]
    root.setLevel(level)
