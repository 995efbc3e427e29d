from __future__ import annotations

from tests.fixtures.envoy import envoy_binary, stand

__all__ = ["envoy_binary", "stand"]
