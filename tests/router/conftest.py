from __future__ import annotations

from tests.fixtures.envoy import envoy_binary, stand
from tests.fixtures.whole import whole

__all__ = ["envoy_binary", "stand", "whole"]
