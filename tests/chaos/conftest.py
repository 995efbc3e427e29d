from __future__ import annotations

from tests.support.envoy import envoy_binary
from tests.support.faults import faulty, milvus_lite

__all__ = ["envoy_binary", "faulty", "milvus_lite"]
