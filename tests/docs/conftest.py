from __future__ import annotations

from tests.fixtures.envoy import envoy_binary

__all__ = ["envoy_binary"]
