from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

# How long an example takes says something of the machine and what else it does, and nothing of the product.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples for everybody: what fails in one place fails in all. `--hypothesis-profile=search` has others.
settings.register_profile("any machine", settings.get_profile("search"), derandomize=True)
settings.load_profile("any machine")

# What is imported and collected stays to the end: looked through for garbage while it grows, and again whenever a
# test has made some, it costs seconds of every run. What a test makes is looked through as ever.
gc.disable()

_HERE = Path(__file__).parent
pytest_plugins = ["tests.support.models", "tests.support.redis"]


# These start real servers, so the machine decides too: a failure is tried once more, and the summary counts it.
_WITH_SERVERS = frozenset(
    {"api", "browser", "chart", "cli", "contract", "deploy", "envoy", "faults", "properties", "router"}
)
# Kills, outages and browsers take longer than all else together: `make long` runs them, `make test` does not.
_LONG = frozenset({"browser", "deploy", "faults", "observed", "properties"})


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks properties, which walk the same lines a hundred times over, as tests without coverage. Tests of one
    module that share a costly measurement run in one worker, so that it is made once."""
    for item in items:
        part = item.path.relative_to(_HERE).parts[0]
        if part in _WITH_SERVERS:
            item.add_marker(pytest.mark.flaky(reruns=1))
        if part in _LONG or item.get_closest_marker("server") is not None:
            item.add_marker(pytest.mark.long)
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.no_cover)
        if item.path.parent.name == "quality":
            item.add_marker(pytest.mark.xdist_group(f"quality/{item.path.stem}"))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """A command configures the log for its process, which here is every test's."""
    known, root = structlog.get_config(), logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.configure(**known)
    root.handlers[:] = [one for one in root.handlers if one in handlers]
    root.setLevel(level)
