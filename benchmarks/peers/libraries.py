"""One peer as a child process: JSON lines in, JSON lines out.

It imports nothing of memory_extproc, so that it runs in the peers' own environment:
`PYTHON libraries.py SYSTEM DIRECTORY EMBEDDINGS_URL`.

Requests:

- `{"op": "add", "owner", "messages": [{"id", "role", "text"}]}`: one exchange;
- `{"op": "search", "owner", "text"}`: the message ids that a prompt would get, of at most five results that reach
  the system's own threshold;
- `{"op": "rank", "owner", "text"}`: the first twenty, without a threshold;
- `{"op": "size"}`: bytes in memory and on disk.

Each answer has `seconds` and `cpu`, the seconds of this process.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

DEEPEST = 20  # results that are ranked
LIMIT = 5  # memories in a prompt, for every system
Found = list[tuple[list[str], float]]  # ids of the messages of each result, and its score, best first


class Embeddings:
    """The embedding model that every system shares, behind the HTTP API that they know."""

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name

    def embed(self, texts: list[str]) -> np.ndarray:
        body = json.dumps({"input": texts, "model": "shared"}).encode()
        request = urllib.request.Request(  # noqa: S310 - a server of this run on loopback
            f"{self.url}/embeddings",
            body,
            {"Content-Type": "application/json", "Authorization": f"Bearer {self.name}"},
        )
        with urllib.request.urlopen(request) as response:  # noqa: S310 - see above
            data = json.load(response)["data"]
        return np.array([one["embedding"] for one in data], dtype=np.float32)


class Bm25:
    """bm25s with its defaults. Its index is not incremental: the first search after an add builds the owner's."""

    threshold = 0.0  # any shared word

    def __init__(self, directory: Path, embeddings: Embeddings) -> None:  # noqa: ARG002 - as the others
        import bm25s  # type: ignore[import-not-found]  # noqa: PLC0415 - only this system needs it

        self._library = bm25s
        self._texts: dict[str, list[tuple[str, str]]] = {}
        self._indexes: dict[str, Any] = {}

    def add(self, owner: str, messages: list[dict[str, str]]) -> None:
        self._texts.setdefault(owner, []).extend((one["id"], one["text"]) for one in messages)
        self._indexes.pop(owner, None)

    def find(self, owner: str, text: str, limit: int) -> Found:
        texts = self._texts.get(owner, [])
        if not texts:
            return []
        if owner not in self._indexes:
            index = self._library.BM25()
            tokens = self._library.tokenize([text for _, text in texts], show_progress=False)
            index.index(tokens, show_progress=False)
            self._indexes[owner] = index
        words = self._library.tokenize([text], show_progress=False)
        places, scores = self._indexes[owner].retrieve(words, k=min(limit, len(texts)), show_progress=False)
        return [([texts[at][0]], float(score)) for at, score in zip(places[0], scores[0], strict=True) if score > 0]


class Dense:
    """Cosine over the vectors of an owner's messages in one array: the least that a vector search can be."""

    threshold = 0.3  # common in examples for all-MiniLM; a prompt gets nothing below it

    def __init__(self, directory: Path, embeddings: Embeddings) -> None:  # noqa: ARG002 - as the others
        self._embeddings = embeddings
        self._ids: dict[str, list[str]] = {}
        self._vectors: dict[str, list[np.ndarray]] = {}

    def add(self, owner: str, messages: list[dict[str, str]]) -> None:
        vectors = self._embeddings.embed([one["text"] for one in messages])
        self._ids.setdefault(owner, []).extend(one["id"] for one in messages)
        self._vectors.setdefault(owner, []).extend(vectors)

    def find(self, owner: str, text: str, limit: int) -> Found:
        [vector] = self._embeddings.embed([text])
        if owner not in self._ids:
            return []
        cosines = np.stack(self._vectors[owner]) @ vector
        best = np.argsort(-cosines, kind="stable")[:limit]
        return [([self._ids[owner][at]], float(cosines[at])) for at in best]


class RouterMilvus:
    """Milvus Lite as a router's memory store uses it: a chunk for each question and answer, dense search within the
    user's rows, a fixed threshold."""

    threshold = 0.7  # the router's documented default for similarity

    def __init__(self, directory: Path, embeddings: Embeddings) -> None:
        from pymilvus import DataType, MilvusClient  # noqa: PLC0415 - only this system needs it

        self._embeddings = embeddings
        self._client = MilvusClient(str(directory / "router.db"))
        schema = self._client.create_schema(auto_id=True)
        schema.add_field("pk", DataType.INT64, is_primary=True)
        schema.add_field("user_id", DataType.VARCHAR, max_length=256)
        schema.add_field("ids", DataType.VARCHAR, max_length=1024)
        schema.add_field("content", DataType.VARCHAR, max_length=65_535)
        schema.add_field("embedding", DataType.FLOAT_VECTOR, dim=embeddings.embed(["width"]).shape[1])
        index = self._client.prepare_index_params()
        index.add_index("embedding", index_type="FLAT", metric_type="COSINE")
        self._client.create_collection("memories", schema=schema, index_params=index)

    def add(self, owner: str, messages: list[dict[str, str]]) -> None:
        content = "\n".join(f"{'Q' if one['role'] == 'user' else 'A'}: {one['text']}" for one in messages)[:16_000]
        [vector] = self._embeddings.embed([content])
        ids = "\n".join(one["id"] for one in messages)
        self._client.insert(
            "memories", [{"user_id": owner, "ids": ids, "content": content, "embedding": vector.tolist()}]
        )

    def find(self, owner: str, text: str, limit: int) -> Found:
        [vector] = self._embeddings.embed([text])
        [hits] = self._client.search(
            "memories",
            [vector.tolist()],
            limit=limit,
            filter=f"user_id == {json.dumps(owner)}",
            output_fields=["ids"],
        )
        return [(one["entity"]["ids"].split("\n"), one["distance"]) for one in hits]


class Mem0:
    """The mem0 library with its local vector store and `infer=False`: messages as they are, without an LLM."""

    threshold = 0.1  # the default of its search

    def __init__(self, directory: Path, embeddings: Embeddings) -> None:
        os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": str(directory), "OPENAI_API_KEY": "unused"}
        from mem0 import Memory  # type: ignore[import-not-found]  # noqa: PLC0415 - only this system needs it

        width = int(embeddings.embed(["width"]).shape[1])
        store = {"path": str(directory / "qdrant"), "embedding_model_dims": width, "on_disk": True}
        embedder = {
            "api_key": embeddings.name,
            "openai_base_url": embeddings.url,
            "model": "shared",
            "embedding_dims": width,
        }
        self._memory = Memory.from_config(
            {
                "vector_store": {"provider": "qdrant", "config": store},
                "embedder": {"provider": "openai", "config": embedder},
                "history_db_path": str(directory / "history.db"),
            }
        )

    def add(self, owner: str, messages: list[dict[str, str]]) -> None:
        for one in messages:
            message = {"role": one["role"], "content": one["text"]}
            self._memory.add([message], user_id=owner, metadata={"message": one["id"]}, infer=False)

    def find(self, owner: str, text: str, limit: int) -> Found:
        found = self._memory.search(text, top_k=limit, filters={"user_id": owner}, threshold=0.0)
        return [([one["metadata"]["message"]], one["score"]) for one in found["results"]]


class Memories(Protocol):
    threshold: float  # least score of a result that goes into a prompt

    def add(self, owner: str, messages: list[dict[str, str]]) -> None: ...

    def find(self, owner: str, text: str, limit: int) -> Found: ...


SYSTEMS: dict[str, Callable[[Path, Embeddings], Memories]] = {
    "mem0": Mem0,
    "milvus": RouterMilvus,
    "bm25": Bm25,
    "dense": Dense,
}


def directory_bytes(directory: Path) -> int:
    return sum(each.stat().st_blocks * 512 for each in directory.rglob("*") if each.is_file())


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    name, directory, url = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a library's own prints are no answers
    system = SYSTEMS[name](directory, Embeddings(url, name))
    print(json.dumps({"ready": name}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        began, before = time.perf_counter(), time.process_time()
        answer: dict[str, Any] = {}
        if request["op"] == "add":
            system.add(request["owner"], request["messages"])
        elif request["op"] in {"search", "rank"}:
            limit = LIMIT if request["op"] == "search" else DEEPEST
            least = system.threshold if request["op"] == "search" else -1.0
            found = system.find(request["owner"], request["text"], limit)
            answer["ids"] = [id_ for ids, score in found if score >= least for id_ in ids]
        else:
            answer |= {"resident": resident_bytes(), "disk": directory_bytes(directory)}
        answer |= {"seconds": time.perf_counter() - began, "cpu": time.process_time() - before}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
