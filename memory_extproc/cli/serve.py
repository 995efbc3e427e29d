"""`memory-extproc serve`: the sidecar until SIGTERM or SIGINT; SIGHUP makes it read its configuration again."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Final

import uvloop

from memory_extproc.cli.config import ConfigFile, faults_to_exit, file_of
from memory_extproc.observe import log
from memory_extproc.settings import Settings, load

logger = log.logger(__name__)

SWITCH_SECONDS: Final = 0.0002  # 5 ms is Python's default
_CLOSING: Final = timedelta(seconds=10)  # for files, connections and models to be closed


def serve(config: ConfigFile = None) -> None:
    """Run the sidecar: ext_proc for Envoy, and /metrics, /healthz, /readyz for operators."""
    with faults_to_exit():
        file = file_of(config)
        settings = load(file, os.environ)
        log.configure(settings.telemetry.log_level, settings.telemetry.log_format)
        uvloop.run(_until_stopped(settings, file))


async def _until_stopped(settings: Settings, config: Path | None) -> None:
    # Imported here: store and inference take half a second to import, which `--help` need not wait for. Without
    # garbage collection, which an eighth of that time goes to, until `_stay_responsive`.
    gc.disable()
    from memory_extproc.app import ConfigurationSource, sidecar  # noqa: PLC0415

    _stay_responsive()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if not stopping.is_set():
            stopping.set()
            warn_of_slow_shutdown(loop, usual_shutdown(settings))

    # Until there is something to reload it must not end us, as it would by default.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    source = ConfigurationSource(config, dict(os.environ)) if config else None
    async with sidecar(settings, source=source) as running:
        if config is None:
            logger.info(
                "sidecar.without_file",
                ext_proc=running.ext_proc,
                data_dir=settings.data_dir,
                hint="everything is at its default: point Envoy's ext_proc filter at that address (`memory-extproc "
                "envoy-config` writes it); `memory-extproc config example > config.yaml` writes a file to change",
            )
        if running.reloading is not None:
            loop.add_signal_handler(signal.SIGHUP, running.reloading.ask)
        await stopping.wait()


def usual_shutdown(settings: Settings) -> timedelta:
    """The time by which the process has nearly always ended after a signal. Two servers drain in turn, then
    exchanges, topics and the learner have their times; hardly ever is all of it used."""
    shutdown = settings.shutdown
    return 2 * shutdown.announce + shutdown.grace + shutdown.flush + _CLOSING


def warn_of_slow_shutdown(loop: asyncio.AbstractEventLoop, after: timedelta) -> None:
    """Log once the tasks that still run, before the supervisor kills the process. On a thread, because the loop
    itself may hang; a daemon, so that it delays no shutdown."""
    timer = threading.Timer(after.total_seconds(), _log_slow_shutdown, [loop])
    timer.daemon = True
    timer.start()


def _log_slow_shutdown(loop: asyncio.AbstractEventLoop) -> None:
    tasks = sorted(f"{task.get_name()}: {_entry_point(task)}" for task in asyncio.all_tasks(loop))
    threads = sorted(thread.name for thread in threading.enumerate() if not thread.daemon)
    logger.warning("sidecar.slow_to_end", tasks=tasks, threads=threads)


def _entry_point(task: asyncio.Task[object]) -> str:
    return str(getattr(task.get_coro(), "__qualname__", "?"))


def _stay_responsive() -> None:
    """Reduce pauses of the event loop."""
    # Imported modules stay for good, with next to no garbage: a full collection over them takes 100 ms.
    gc.freeze()
    gc.enable()
    # The loop waits this long for a computing thread (Milvus Lite, the model's Python part) at each event; with the
    # default, every chunk of an answer could. An embedding waits as long for a loop that analyses text.
    sys.setswitchinterval(SWITCH_SECONDS)
