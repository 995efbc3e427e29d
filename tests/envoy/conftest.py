from __future__ import annotations

from tests.fixtures.envoy import bodies, envoy_binary, stand
from tests.fixtures.rest import rest
from tests.fixtures.whole import whole

__all__ = ["bodies", "envoy_binary", "rest", "stand", "whole"]
