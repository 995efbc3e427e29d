from __future__ import annotations

from tests.support.envoy import envoy_binary, stand
from tests.support.faults import faulty
from tests.support.whole import whole

__all__ = ["envoy_binary", "faulty", "stand", "whole"]
