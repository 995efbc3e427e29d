"""`memory-extproc serve`: the sidecar until SIGTERM or SIGINT; SIGHUP makes it read its configuration again."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Final

import typer
import uvloop

from memory_extproc.cli.ending import Ending, ending_limits
from memory_extproc.cli.faults import faults_to_exit
from memory_extproc.observe import log
from memory_extproc.settings import Settings, load

SWITCH_SECONDS: Final = 0.0002  # 5 ms is Python's default


def serve(
    config: Annotated[Path, typer.Option("--config", "-c", help="the configuration, YAML")] = Path("config.yaml"),
) -> None:
    """Run the sidecar: ext_proc for Envoy, and /metrics, /healthz, /readyz for operators."""
    with faults_to_exit():
        settings = load(config, os.environ)
        log.configure(settings.telemetry.log_level, settings.telemetry.log_format)
        uvloop.run(_until_stopped(settings, config))


async def _until_stopped(settings: Settings, config: Path) -> None:
    # Imported here: store and inference take half a second to import, which `--help` need not wait for.
    from memory_extproc.app import Source, sidecar  # noqa: PLC0415

    _stay_responsive()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    ending = Ending(ending_limits(settings))

    def stop() -> None:
        stopping.set()
        ending.begin(loop)

    # Until there is something to reload it must not end us, as it would by default.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    async with sidecar(settings, source=Source(config, dict(os.environ))) as running:
        if running.reloading is not None:
            loop.add_signal_handler(signal.SIGHUP, running.reloading.ask)
        await stopping.wait()


def _stay_responsive() -> None:
    """What the event loop would wait for, made shorter."""
    # Whatever was imported stays for good: a full collection that looks through all of it takes 100 ms.
    gc.collect()
    gc.freeze()
    # For so long the loop waits for a thread that computes (Milvus Lite, the model's Python part) each time
    # something arrives; with the default, every chunk of an answer could. And for so long a question waits to be
    # embedded while the loop works out what its words say.
    sys.setswitchinterval(SWITCH_SECONDS)
