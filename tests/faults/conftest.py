from __future__ import annotations

from tests.support.envoy import bodies, envoy_binary, stand
from tests.support.faults import faulty, link, milvus_lite

__all__ = ["bodies", "envoy_binary", "faulty", "link", "milvus_lite", "stand"]
