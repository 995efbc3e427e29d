from __future__ import annotations

from tests.support.envoy import bodies, envoy_binary, stand
from tests.support.rest import rest
from tests.support.whole import whole

__all__ = ["bodies", "envoy_binary", "rest", "stand", "whole"]
