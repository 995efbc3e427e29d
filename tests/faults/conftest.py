from __future__ import annotations

from tests.fixtures.envoy import envoy_binary, stand
from tests.fixtures.faults import faulty, link, milvus_lite

__all__ = ["envoy_binary", "faulty", "link", "milvus_lite", "stand"]
