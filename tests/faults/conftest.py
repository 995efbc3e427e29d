from __future__ import annotations

from tests.fixtures.envoy import bodies, envoy_binary, stand
from tests.fixtures.faults import faulty, link, milvus_lite

__all__ = ["bodies", "envoy_binary", "faulty", "link", "milvus_lite", "stand"]
