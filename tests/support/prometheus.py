"""The real Prometheus on a free port, scraping what a test says once a second."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.support.ports import free_port
from tests.support.waiting import until


def binary(name: str) -> str:
    """*name* of Debian's package prometheus; the test is skipped where it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not here: apt-get install prometheus")
    return found


class Prometheus:
    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self._at = f"http://127.0.0.1:{port}"

    async def value(self, expression: str) -> list[dict[str, Any]]:
        """The series that *expression* gives now."""
        async with self._session.get(f"{self._at}/api/v1/query", params={"query": expression}) as got:
            told = await got.json()
        assert told["status"] == "success", f"{expression}: {told.get('error')}"
        series: list[dict[str, Any]] = told["data"]["result"]
        return series

    async def ready(self) -> bool:
        with suppress(aiohttp.ClientError):
            async with self._session.get(f"{self._at}/-/ready") as got:
                return got.status == 200
        return False

    async def scraped(self, times: int) -> bool:
        """Whether every target was scraped so often."""
        counts = await self.value("count_over_time(up[10m])")
        return bool(counts) and all(float(each["value"][1]) >= times for each in counts)


@asynccontextmanager
async def scraping(scratch: Path, targets: Mapping[str, tuple[str, str]]) -> AsyncIterator[Prometheus]:
    """*targets*: job → (host:port, path)."""
    jobs = [
        {"job_name": job, "metrics_path": path, "static_configs": [{"targets": [address]}]}
        for job, (address, path) in targets.items()
    ]
    config = scratch / "prometheus.yml"
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
    port = free_port()
    command = [binary("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={scratch / 'tsdb'}"]
    process = await asyncio.create_subprocess_exec(
        *command,
        f"--web.listen-address=127.0.0.1:{port}",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        async with aiohttp.ClientSession() as session:
            prometheus = Prometheus(session, port)
            await until(prometheus.ready, "Prometheus is ready", seconds=20)
            yield prometheus
    finally:
        process.terminate()
        await process.wait()
