from __future__ import annotations

from tests.support.envoy import envoy_binary

__all__ = ["envoy_binary"]
