"""Envoy on 8888 and the sidecar with config.yaml, until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from demo.llm import DemoLLM
from demo.stack import Ports, Stack, Started, free_port, in_use
from memory_extproc.api.authentication import PrincipalRole
from memory_extproc.cli.admin import sign_in_link
from memory_extproc.settings import Settings, load

DEMO_USERS = ("ann", "bob")
OPERATOR = "operator"


async def keep(
    console: Console, settings: Settings, logs: Path, upstream: str, model: str, config: Path, port: int
) -> int:
    llm = DemoLLM()
    if not upstream:
        upstream, model = f"http://127.0.0.1:{await llm.start()}", "demo-llm"
    ports = Ports(port, port_of(settings.listen.ext_proc), port_of(settings.listen.http), free_port())
    stack = Stack(config, ports, upstream, logs)
    # On one's own machine the page is on, whatever the configuration says.
    stack.environ = {
        "MEMORY_EXTPROC__CONSOLE__PAGE": "true",
        "MEMORY_EXTPROC__TRACE__KEEP": "1d",
        "MEMORY_EXTPROC__CONSOLE__CHATS": f"http://127.0.0.1:{port}/v1",
        "MEMORY_EXTPROC__CONSOLE__CHAT_MODEL": model or "demo-llm",
    }
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    try:
        with console.status("starting the sidecar and Envoy") as status:
            await stack.start(status.update)
        explain(console, settings, port, model or "MODEL", upstream, logs)
        for ended in await until_stopped(stack, stopping):
            console.print(f"{ended.name} ended by itself:\n{ended.tail(10)}", markup=False, highlight=False)
    finally:
        console.print("draining and stopping")
        await stack.stop()
        await llm.stop()
    return 0 if stopping.is_set() else 1


async def until_stopped(stack: Stack, stopping: asyncio.Event) -> list[Started]:
    """Until Ctrl-C, or until one of the processes ends: those that did so by themselves."""
    running = [one for one in (stack.envoy, stack.sidecar) if one is not None]
    waiting = [asyncio.ensure_future(one) for one in (stopping.wait(), *(each.process.wait() for each in running))]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for one in waiting:
        one.cancel()
        with suppress(asyncio.CancelledError):
            await one
    # Ctrl-C on a terminal reaches them too.
    return [] if stopping.is_set() else [one for one in running if one.process.returncode is not None]


def explain(console: Console, settings: Settings, port: int, model: str, upstream: str, logs: Path) -> None:
    console.print(f"[bold green]ready[/]: http://127.0.0.1:{port}/v1 with memory, in front of {upstream}")
    metrics = f"http://127.0.0.1:{port_of(settings.listen.http)}/metrics"
    console.print(f"metrics: {metrics} · logs: {logs} · Ctrl-C stops\n", highlight=False, soft_wrap=True)
    for user in DEMO_USERS:
        link = sign_in_link(settings, user, "", frozenset({PrincipalRole.USER}))
        console.print(f"the page of {user}, a link that works once: {link}", highlight=False, soft_wrap=True)
    link = sign_in_link(settings, OPERATOR, "", frozenset({PrincipalRole.ADMIN}))
    console.print(f"the operator's page, a link that works once: {link}", highlight=False, soft_wrap=True)
    console.print()
    console.print(
        f"curl -si http://127.0.0.1:{port}/v1/chat/completions -H 'content-type: application/json' \\\n"
        f"  -H '{settings.identity.user_header}: ann' \\\n"
        f'  -d \'{{"model": "{model}", "messages": [{{"role": "user", '
        f'"content": "My budget for the Hawaii trip is $10,000"}}]}}\'',
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def port_of(address: str) -> int:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise SystemExit(f"the stand needs TCP addresses in the configuration, not {address!r}")
    return int(port)


def main(console: Console, upstream: str, model: str, config: Path, port: int) -> int:
    settings = load(config, os.environ)
    listen = settings.listen
    ours = (listen.ext_proc, listen.api, listen.console, listen.http)
    ports = {port: "Envoy", **{port_of(each): "the sidecar" for each in ours}}
    if taken := [f"{each} ({whose})" for each, whose in ports.items() if in_use(each)]:
        raise SystemExit(
            f"in use already: {', '.join(taken)}. Does another stand run? Envoy's: make run PORT=8889 …"
        )
    logs = Path(settings.data_dir).absolute() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    return asyncio.run(keep(console, settings, logs, upstream, model, config, port))
