from __future__ import annotations

from tests.fixtures.envoy import envoy_binary
from tests.fixtures.faults import faulty, milvus_lite

__all__ = ["envoy_binary", "faulty", "milvus_lite"]
