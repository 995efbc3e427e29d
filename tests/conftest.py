from __future__ import annotations

pytest_plugins = ["tests.fixtures.models", "tests.fixtures.redis"]
