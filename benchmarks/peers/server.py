"""The embedding model behind the HTTP API that peers know, with its CPU counted by the system that asked.

`python -m benchmarks.peers.server` says its port in a line; `GET /cpu` has the seconds spent for each bearer.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import Any

from aiohttp import web

from benchmarks.lines import say, until_input_ends
from memory_extproc.evaluation.bench import embedder_of
from memory_extproc.ports import EmbeddingModel
from memory_extproc.settings import load

LARGEST = 64 << 20  # bytes of a request


class Server:
    def __init__(self, embedder: EmbeddingModel) -> None:
        self._embedder = embedder
        self._cpu: defaultdict[str, float] = defaultdict(float)  # seconds by system
        self._alone = asyncio.Lock()  # one request at a time, so that its CPU is its own

    async def embeddings(self, request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        name = request.headers.get("Authorization", "").removeprefix("Bearer ")
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        async with self._alone:
            before = time.process_time()
            vectors = await self._embedder.embed(texts)
            self._cpu[name] += time.process_time() - before
        data = [
            {"object": "embedding", "index": at, "embedding": vector.tolist()} for at, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": 0, "total_tokens": 0}
        return web.json_response({"object": "list", "data": data, "model": "shared", "usage": usage})

    async def cpu(self, _request: web.Request) -> web.Response:
        return web.json_response(self._cpu)


async def main() -> None:
    async with embedder_of(load(None, {})) as embedder:
        server = Server(embedder)
        app = web.Application(client_max_size=LARGEST)
        app.router.add_post("/v1/embeddings", server.embeddings)
        app.router.add_get("/cpu", server.cpu)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        say({"port": runner.addresses[0][1]})
        await until_input_ends()
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
