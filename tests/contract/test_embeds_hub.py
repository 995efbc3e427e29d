"""A model from a model hub, played by a local HTTP server that serves a repository's files."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from aiohttp import web

from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.inference.bert_onnx import bert_graph
from memory_extproc.inference.model_files import ModelKind, Precision
from memory_extproc.inference.onnx import CrossEncoderModel, OnnxModel
from memory_extproc.inference.prepare import ModelSource, fetch, parse_source, prepare
from tests.support.tiny_bert import write_tiny_bert

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "org/tiny"
TEXTS = ["1 2 3", "7 8"]


@asynccontextmanager
async def hub(repository: Path) -> AsyncIterator[str]:
    """Serves *repository* as REPOSITORY, as the hub's client asks for it; nothing else is there."""
    names = await asyncio.to_thread(names_below, repository)

    async def tree(_: web.Request) -> web.Response:
        sizes = {name: (repository / name).stat().st_size for name in names}
        return web.json_response([{"type": "file", "path": n, "size": s, "oid": COMMIT} for n, s in sizes.items()])

    async def about(_: web.Request) -> web.Response:
        return web.json_response({"id": REPOSITORY, "sha": COMMIT, "siblings": [{"rfilename": n} for n in names]})

    async def resolve(request: web.Request) -> web.StreamResponse:
        path = repository / request.match_info["name"]
        if not path.is_file():
            return web.Response(status=404, headers={"x-error-code": "EntryNotFound"})
        body = path.read_bytes()
        etag = hashlib.sha256(body).hexdigest()
        return web.Response(body=body, headers={"etag": f'"{etag}"', "x-repo-commit": COMMIT})

    application = web.Application()
    application.router.add_get(f"/api/models/{REPOSITORY}/tree/{{revision}}", tree)
    application.router.add_get(f"/api/models/{REPOSITORY}", about)
    application.router.add_get(f"/api/models/{REPOSITORY}/revision/{{revision}}", about)
    application.router.add_get(f"/{REPOSITORY}/resolve/{{revision}}/{{name:.+}}", resolve)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


def names_below(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def quietly(_: str) -> None:
    pass


async def test_the_hubs_ready_graph_is_taken_and_its_weights_are_not(tmp_path: Path) -> None:
    repository = write_tiny_bert(tmp_path / "repository")
    (repository / "onnx").mkdir()
    onnx.save_model(bert_graph(repository), repository / "onnx" / "model.onnx")
    (repository / "pytorch_model.bin").write_bytes(b"pickle")
    async with hub(repository) as address:
        taken = await asyncio.to_thread(fetch, ModelSource("hub", REPOSITORY, "tiny"), tmp_path / "into", address)

    found = {name for name in names_below(taken) if not name.startswith(".cache/")}
    assert found == {"config.json", "sentence_bert_config.json", "tokenizer.json", "onnx/model.onnx"}


async def test_a_cross_encoder_from_the_hub_scores_as_a_local_copy(tmp_path: Path) -> None:
    repository = write_tiny_bert(tmp_path / "repository", classes=1)
    kind = ModelKind.CROSS_ENCODER
    async with hub(repository) as address:
        source = parse_source(f"hub:{REPOSITORY}")
        made = await asyncio.to_thread(
            lambda: prepare(
                source, Precision.INT8, tmp_path / "models", kind=kind, force=False, say=quietly, hub=address
            )
        )
    local = prepare(
        parse_source(str(repository)), Precision.INT8, tmp_path / "local", kind=kind, force=False, say=quietly
    )
    left, right = (CrossEncoderModel(each.directory, 512).run("1 2", TEXTS, 64) for each in (made, local))
    assert np.array_equal(left, right)


async def test_a_model_from_the_hub_is_the_model_of_a_local_copy(tmp_path: Path) -> None:
    repository = write_tiny_bert(tmp_path / "repository")
    async with hub(repository) as address:
        source = parse_source(f"hub:{REPOSITORY}")
        made = await asyncio.to_thread(
            lambda: prepare(source, Precision.INT8, tmp_path / "models", force=False, say=quietly, hub=address)
        )
    local = prepare(parse_source(str(repository)), Precision.INT8, tmp_path / "models", force=False, say=quietly)

    assert made.directory.name == "tiny-int8"
    assert np.array_equal(OnnxModel(made.directory).run(TEXTS, 64), OnnxModel(local.directory).run(TEXTS, 64))


async def test_a_repository_that_is_not_there_is_given_up(tmp_path: Path) -> None:
    async with hub(write_tiny_bert(tmp_path / "repository")) as address:
        with pytest.raises(PermanentError, match="no repository 'org/other'"):
            await asyncio.to_thread(fetch, ModelSource("hub", "org/other", "other"), tmp_path / "into", address)


def test_a_hub_that_cannot_be_reached_is_put_off(tmp_path: Path) -> None:
    with pytest.raises(TransientError, match="could not be reached"):
        fetch(ModelSource("hub", REPOSITORY, "tiny"), tmp_path / "into", "nowhere://hub")
