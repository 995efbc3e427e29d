from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml
from prometheus_client import CollectorRegistry

from memory_extproc.app.context import Live
from memory_extproc.app.sidecar import ConfigurationReloader, ConfigurationSource, changes_in
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings import Settings
from tests.support.waiting import until


@dataclass
class Desk:
    """A configuration file, whoever follows it, and a bell that says that files changed."""

    path: Path
    metrics: Metrics = field(default_factory=lambda: Metrics(CollectorRegistry(), "test"))
    told: list[Settings] = field(default_factory=list)
    rings: asyncio.Queue[None] = field(default_factory=asyncio.Queue)
    watched: list[Sequence[Path]] = field(default_factory=list)
    live: Live = field(init=False)

    def write(self, **given: Any) -> None:
        self.path.write_text(yaml.safe_dump(given) or "", encoding="utf-8")

    async def changes(self, directories: Sequence[Path]) -> AsyncGenerator[object]:
        self.watched.append(directories)
        while True:
            await self.rings.get()
            yield None

    @asynccontextmanager
    async def following(self) -> AsyncIterator[ConfigurationReloader]:
        source = ConfigurationSource(self.path, {})
        self.live = Live(source.load())
        self.live.subscribe(self.told.append)
        async with ConfigurationReloader(self.live, source, self.metrics, changes=self.changes) as reloading:
            yield reloading

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"memory_extproc_configuration_{name}", labels) or 0.0

    def outcomes(self, outcome: str, count: int = 1) -> Callable[[], bool]:
        return lambda: self.sample("reloads_total", outcome=outcome) == count


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    made = Desk(tmp_path / "config.yaml")
    made.write(mode="active")
    return made


async def test_a_changed_file_is_taken_up_and_everyone_who_follows_is_told(desk: Desk) -> None:
    async with desk.following():
        desk.write(mode="shadow", data_dir="/elsewhere")
        with structlog.testing.capture_logs() as logs:
            desk.rings.put_nowait(None)
            await until(desk.outcomes("applied"), "applied")
        assert [each.mode for each in desk.told] == ["shadow"]
        assert desk.live.settings.mode == "shadow"
        assert desk.live.settings.data_dir != "/elsewhere"
    assert [(line["event"], line["keys"]) for line in logs] == [
        ("configuration.needs_restart", ["data_dir"]),
        ("configuration.reloaded", ["mode"]),
    ]
    assert desk.sample("restart_needed") == 1
    assert desk.sample("reload_failed") == 0


async def test_a_bad_configuration_changes_nothing_and_every_fault_is_said_until_it_is_mended(desk: Desk) -> None:
    async with desk.following():
        desk.write(mode="shadow", recall={"deadline": "soon"}, inject={"token_budget": 1})
        with structlog.testing.capture_logs() as logs:
            desk.rings.put_nowait(None)
            await until(desk.outcomes("refused"), "refused")
        assert desk.sample("reload_failed") == 1
        assert not desk.told
        assert desk.live.settings == Settings(mode="active", data_dir=desk.live.settings.data_dir)
        faults = [line["fault"] for line in logs if line["event"] == "configuration.refused"]
        assert [fault.partition(":")[0] for fault in faults] == ["recall.deadline", "inject.token_budget"]
        desk.write(mode="shadow")
        desk.rings.put_nowait(None)
        await until(desk.outcomes("applied"), "applied")
        assert desk.sample("reload_failed") == 0
        assert desk.live.settings.mode == "shadow"


@pytest.mark.parametrize("content", ["", "  \n", None], ids=["empty", "blank", "gone"])
async def test_a_file_that_is_empty_or_gone_does_not_give_the_defaults(desk: Desk, content: str | None) -> None:
    desk.write(mode="shadow")
    async with desk.following():
        if content is None:
            desk.path.unlink()
        else:
            desk.path.write_text(content)
        desk.rings.put_nowait(None)
        await until(desk.outcomes("refused"), "refused")
        assert desk.live.settings.mode == "shadow"


async def test_files_beside_it_that_change_cause_nothing_and_asking_reads_whether_or_not_it_changed(
    desk: Desk,
) -> None:
    async with desk.following() as reloading:
        (desk.path.parent / "neighbour").write_text("x")
        desk.rings.put_nowait(None)
        reloading.ask()
        await until(desk.outcomes("unchanged"), "unchanged")
    assert desk.sample("reloads_total", outcome="applied") == 0
    assert not desk.told


async def test_a_key_in_a_file_of_its_own_is_read_again_when_that_file_changes(desk: Desk, tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "key").write_text("old")
    model = {
        "model_role": "memory_extraction",
        "llm_endpoint": {"address": "qwen", "port": 1, "access_key_file": str(secrets / "key")},
        "llm_model_name": "qwen3",
    }
    desk.write(external_models=[model])
    async with desk.following():
        await until(lambda: bool(desk.watched), "watching")
        assert set(desk.watched[0]) == {tmp_path, secrets}
        (secrets / "key").write_text("new")
        desk.rings.put_nowait(None)
        await until(desk.outcomes("applied"), "applied")
        (changed,) = desk.told
        assert changed.external_models[0].llm_endpoint.access_key.get_secret_value() == "new"


async def test_directories_that_cannot_be_watched_leave_asking(desk: Desk) -> None:
    async def refuses(_: Sequence[Path]) -> AsyncGenerator[object]:
        raise OSError("no notices left")
        yield

    source = ConfigurationSource(desk.path, {})
    live = Live(source.load())
    with structlog.testing.capture_logs() as logs:
        async with ConfigurationReloader(live, source, desk.metrics, changes=refuses) as reloading:
            await until(lambda: any(line["event"] == "configuration.unwatched" for line in logs), "the warning")
            desk.write(mode="shadow")
            reloading.ask()
            await until(desk.outcomes("applied"), "applied")
    assert live.settings.mode == "shadow"


async def test_a_mounted_configuration_is_followed_when_its_link_is_swapped(tmp_path: Path) -> None:
    """As Kubernetes replaces a ConfigMap: `..data` is renamed over, the file's own link never changes."""
    mounted = tmp_path / "mounted"
    for version, mode in (("..1", "active"), ("..2", "shadow")):
        (mounted / version).mkdir(parents=True)
        (mounted / version / "config.yaml").write_text(f"mode: {mode}\n")
    (mounted / "..data").symlink_to("..1")
    (mounted / "config.yaml").symlink_to("..data/config.yaml")
    desk = Desk(mounted / "config.yaml")
    source = ConfigurationSource(desk.path, {})
    live = Live(source.load())
    ready = asyncio.Event()

    async def changes(directories: Sequence[Path]) -> AsyncGenerator[object]:
        changing = changes_in(directories)
        following = asyncio.ensure_future(anext(changing))
        # Watching begins in a thread of its own; what happens before is not seen, so something happens until it is.
        while not following.done():
            (tmp_path / "mounted" / "beside").write_bytes(os.urandom(8))
            await asyncio.wait({following}, timeout=0.05)
        ready.set()
        yield None
        async for each in changing:
            yield each

    async with ConfigurationReloader(live, source, desk.metrics, changes=changes):
        await asyncio.wait_for(ready.wait(), 10)
        (mounted / "..data_tmp").symlink_to("..2")
        (mounted / "..data_tmp").rename(mounted / "..data")
        await until(desk.outcomes("applied"), "applied")
    assert live.settings.mode == "shadow"


async def test_what_a_new_value_opens_is_said_as_at_a_start(desk: Desk) -> None:
    async with desk.following():
        desk.write(identity={"trust_body": True})
        with structlog.testing.capture_logs() as logs:
            desk.rings.put_nowait(None)
            await until(desk.outcomes("applied"), "applied")
    (notice,) = [line["notice"] for line in logs if line["event"] == "configuration.notice"]
    assert notice.startswith("identity.trust_body:")
