"""`python -m benchmarks.peers`: each way to remember on the same messages and questions, interleaved in one run.

mem0 and bm25s run in an environment of their own (requirements.txt); without it they are left out, and said so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import lzma
import random
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import aiohttp
import numpy as np
import typer
from rich.console import Console

from benchmarks import words
from benchmarks.lines import LINE_LIMIT, ChildFailedError, child, end, tail
from benchmarks.peers import report
from memory_extproc.evaluation.datasets import EvaluationCase, Names, foreign, read_dataset, reword
from memory_extproc.evaluation.runner import exchanges
from memory_extproc.model import Owner, Role

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SETS = ("tests/quality/realmem-p5-p6.jsonl.xz", "tests/quality/everyday.jsonl")
SIZES = ("1000x1", "1000x100", "10000x1", "10000x100")
OURS = "memory-extproc"
OWN_ENVIRONMENT = ("mem0", "bm25")
SYSTEMS = (OURS, "mem0", "milvus", "dense", "bm25")
STARTS_WITHIN, ANSWERS_WITHIN = 120.0, 300.0  # seconds
SESSION = 10  # exchanges of the made-up callers
BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass
class Turn:
    """One exchange of *owner*, as every system is told it."""

    owner: str
    session: str
    at: datetime
    messages: list[dict[str, str]]


@dataclass
class Asked:
    owner: str
    text: str
    relevant: frozenset[str]  # empty: nothing in this owner's memories answers it


@dataclass
class Figures:
    """Figures of one system on one set; times in seconds, sizes in bytes."""

    recall_5: list[float] = field(default_factory=list)
    recall_10: list[float] = field(default_factory=list)
    evidence: list[float] = field(default_factory=list)  # share of a question's evidence that the prompt gets
    precision: list[float] = field(default_factory=list)  # share of evidence among the messages of each prompt
    abstained: list[bool] = field(default_factory=list)
    search: list[float] = field(default_factory=list)
    search_cpu: float = 0.0
    add: list[float] = field(default_factory=list)
    add_cpu: float = 0.0
    added: int = 0  # messages
    resident: int = 0
    disk: int = 0


class System:
    """A child process with one system, and the CPU that the embedding server spends for it."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path, embeddings: str) -> None:
        self.name, self._process, self._log, self._embeddings = name, process, log, embeddings

    async def ask(self, request: dict[str, Any], within: float = ANSWERS_WITHIN) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        return await self.read(within)

    async def read(self, within: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                line = await self._process.stdout.readline()
        if not line:
            raise ChildFailedError(f"{self.name} did not answer\n{tail(self._log)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def embedding_cpu(self) -> float:
        async with aiohttp.ClientSession() as session, session.get(f"{self._embeddings}/cpu") as response:
            spent = await response.json()
        return float(spent.get(self.name, 0.0))


@contextlib.asynccontextmanager
async def start(name: str, scratch: Path, embeddings: str, python: Path) -> AsyncIterator[System]:
    directory = scratch / name
    directory.mkdir()
    log = scratch / f"{name}.log"
    interpreter = str(python) if name in OWN_ENVIRONMENT else sys.executable
    command = (
        (sys.executable, "-m", "benchmarks.peers.ours", str(directory))
        if name == OURS
        else (interpreter, str(HERE / "libraries.py"), name, str(directory), f"{embeddings}/v1")
    )
    with log.open("wb") as err:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=err, limit=LINE_LIMIT
        )
    system = System(name, process, log, embeddings)
    try:
        await system.read(STARTS_WITHIN)
        yield system
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await end(process)


def turns_of(conversation: EvaluationCase) -> list[Turn]:
    """A conversation two by two; notes that nobody said become messages of the caller, the newer ones only."""
    owner = Owner("peers", conversation.name)
    found = []
    for exchange in exchanges(conversation, owner):
        ids = [ids[0] for _, ids in sorted(exchange.places.items())]
        texts = [
            (role, text)
            for role, text in ((Role.USER, exchange.exchanged.asked), (Role.ASSISTANT, exchange.exchanged.answered))
            if text
        ]
        messages = [
            {"id": id_, "role": role.value, "text": text} for id_, (role, text) in zip(ids, texts, strict=True)
        ]
        found.append(Turn(conversation.name, exchange.exchanged.caller.session, exchange.exchanged.at, messages))
    for note in sorted(conversation.noted, key=lambda one: one.at):
        message = {"id": note.id, "role": "user", "text": note.text}
        found.append(Turn(conversation.name, f"note-{note.id}", note.at, [message]))
    return sorted(found, key=lambda one: one.at)


def questions_of(conversations: Sequence[EvaluationCase], most: int) -> list[Asked]:
    home = [
        Asked(each.name, question.text, question.relevant)
        for each in conversations
        for question in each.questions
        if question.counts or not question.relevant
    ]
    away = [
        Asked(there.name, reword(question.text, here.speakers, Names.FIRST_PERSON), frozenset())
        for here, there, question in foreign(conversations)
    ]
    return _spread(home, most) + _spread(away, most)


def _spread(asked: list[Asked], most: int) -> list[Asked]:
    return asked if len(asked) <= most else [asked[at * len(asked) // most] for at in range(most)]


def made_up(users: int, memories: int) -> tuple[list[Turn], list[Asked]]:
    """*memories* messages in all, of *users* callers, and 100 questions about them."""
    texts, turns = words.memories(), []
    each = memories // users
    for user in range(users):
        for at in range(each):
            text = texts[(user + at) % len(texts)]
            if at >= len(texts):
                text = f"{text.rstrip('.')} as it was {at // len(texts)} years before."
            session, when = f"u{user}-s{at // SESSION}", BEGIN + timedelta(minutes=at)
            turns.append(Turn(f"u{user}", session, when, [{"id": f"u{user}-{at}", "role": "user", "text": text}]))
    return turns, [Asked(f"u{number % users}", words.question(number), frozenset()) for number in range(100)]


async def play(
    systems: Sequence[System], turns: Sequence[Turn], asked: Sequence[Asked], order: random.Random, say: report.Say
) -> dict[str, Figures]:
    """Everything told to every system, then every question put to each, in an order that changes."""
    found: dict[str, Figures] = defaultdict(Figures)
    phases: tuple[tuple[str, Sequence[Turn | Asked]], ...] = (("adding", turns), ("asking", asked))
    for phase, work in phases:
        spent = {system.name: await system.embedding_cpu() for system in systems}
        for done, one in enumerate(work):
            if done % 200 == 0:
                say(f"{phase}: {done} of {len(work)}")
            for system in order.sample(systems, len(systems)):
                figures = found[system.name]
                if isinstance(one, Turn):
                    await _add(system, one, figures)
                else:
                    await _ask(system, one, figures)
        for system in systems:
            more = await system.embedding_cpu() - spent[system.name]
            figures = found[system.name]
            if phase == "adding":
                figures.add_cpu += more
            else:
                # A ranked search beside each timed one embeds the question as well.
                ranked = sum(bool(one.relevant) for one in asked)
                figures.search_cpu += more * len(asked) / max(1, len(asked) + ranked)
    for system in systems:
        size = await system.ask({"op": "size"})
        found[system.name].resident, found[system.name].disk = size["resident"], size["disk"]
    return dict(found)


async def _add(system: System, turn: Turn, figures: Figures) -> None:
    answer = await system.ask(
        {
            "op": "add",
            "owner": turn.owner,
            "session": turn.session,
            "at": turn.at.isoformat(),
            "messages": turn.messages,
        }
    )
    figures.add.append(answer["seconds"])
    figures.add_cpu += answer["cpu"]
    figures.added += len(turn.messages)


async def _ask(system: System, asked: Asked, figures: Figures) -> None:
    answer = await system.ask({"op": "search", "owner": asked.owner, "text": asked.text})
    figures.search.append(answer["seconds"])
    figures.search_cpu += answer["cpu"]
    injected = set(answer["ids"])
    if not asked.relevant:
        figures.abstained.append(not injected)
        return
    figures.evidence.append(len(injected & asked.relevant) / len(asked.relevant))
    if injected:
        figures.precision.append(len(injected & asked.relevant) / len(injected))
    ranked = (await system.ask({"op": "rank", "owner": asked.owner, "text": asked.text}))["ids"]
    for k, shares in ((5, figures.recall_5), (10, figures.recall_10)):
        shares.append(len(asked.relevant & set(ranked[:k])) / len(asked.relevant))


def in_short(figures: Figures) -> dict[str, float | None]:
    """The figures that are printed and kept: shares, milliseconds, MiB."""

    def mean(values: Sequence[float]) -> float | None:
        return round(fmean(values), 3) if values else None

    def ms(values: Sequence[float], share: float) -> float | None:
        return round(1000 * float(np.quantile(values, share)), 2) if values else None

    return {
        "recall@5": mean(figures.recall_5),
        "recall@10": mean(figures.recall_10),
        "evidence in the prompt": mean(figures.evidence),
        "precision of the prompt": mean(figures.precision),
        "abstention": mean(figures.abstained),
        "search p50 ms": ms(figures.search, 0.5),
        "search p99 ms": ms(figures.search, 0.99),
        "CPU ms a search": round(1000 * figures.search_cpu / max(1, len(figures.search)), 2),
        "add p50 ms": ms(figures.add, 0.5),
        "CPU ms a message added": round(1000 * figures.add_cpu / max(1, figures.added), 2),
        "resident MiB": round(figures.resident / 2**20, 1),
        "disk MiB": round(figures.disk / 2**20, 2),
    }


def read_set(path: Path, scratch: Path) -> Sequence[EvaluationCase]:
    if path.suffix == ".xz":
        plain = scratch / path.stem
        plain.write_bytes(lzma.decompress(path.read_bytes()))
        path = plain
    return read_dataset(path).conversations


@contextlib.asynccontextmanager
async def open_systems(names: Sequence[str], python: Path) -> AsyncIterator[list[System]]:
    """Fresh systems and an embedding server, in a directory that goes with them."""
    with tempfile.TemporaryDirectory(prefix="memory-peers-") as made:
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(child("peers.server", scratch=Path(made)))
            port = (await server.hear(dict[str, int], within=STARTS_WITHIN))["port"]
            yield [
                await stack.enter_async_context(start(name, Path(made), f"http://127.0.0.1:{port}", python))
                for name in names
            ]


def works(name: str, python: Path) -> bool:
    return name not in OWN_ENVIRONMENT or python.exists()


def cases(
    sets: Sequence[Path], most: int, sizes: Sequence[tuple[int, int]]
) -> Iterator[tuple[str, list[Turn], list[Asked]]]:
    with tempfile.TemporaryDirectory() as scratch:
        for path in sets:
            conversations = read_set(path, Path(scratch))
            turns = [turn for each in conversations for turn in turns_of(each)]
            yield re.sub(r"\..*", "", path.name), turns, questions_of(conversations, most)
    for memories, users in sizes:
        yield f"{memories:,} memories, {users} user{'s' * (users > 1)}", *made_up(users, memories)


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no number of memories and of users, such as 1000x10")
    return int(found[1]), int(found[2])


@app.command()
def peers(
    dataset: Annotated[list[Path] | None, typer.Option(help="instead of the sets of the source")] = None,
    size: Annotated[list[str] | None, typer.Option(help=f"memories x users; instead of {', '.join(SIZES)}")] = None,
    questions: Annotated[
        int, typer.Option(min=1, help="at most so many with an answer, and so many without")
    ] = 200,
    quick: Annotated[bool, typer.Option("--quick", help="small and few: does it run?")] = False,  # noqa: FBT002
    python: Annotated[Path, typer.Option(help="of the environment with mem0 and bm25s")] = ROOT
    / ".tools/peers/bin/python",
    out: Annotated[Path | None, typer.Option(help="figures, table and plot go into this page's directory")] = None,
    seed: Annotated[int, typer.Option(help="of the order in which the systems take turns")] = 1,
) -> None:
    """Quality and cost of memory-extproc, mem0, plain Milvus, dense vectors and BM25 on the same data."""
    console = Console(stderr=True)
    names = [name for name in SYSTEMS if works(name, python)]
    for name in set(SYSTEMS) - set(names):
        console.print(f"{name} is left out: no {python}; benchmarks/peers/requirements.txt says how to make it")
    sizes = [_size(one) for one in (["200x2"] if quick else size or SIZES)]
    sets = dataset or [ROOT / name for name in SETS]

    async def run() -> dict[str, dict[str, dict[str, float | None]]]:
        found = {}
        for title, turns, asked in cases(sets, 10 if quick else questions, sizes):
            console.log(f"{title}: {sum(len(one.messages) for one in turns)} messages, {len(asked)} questions")
            async with open_systems(names, python) as systems:
                played = await play(
                    systems, turns[:100] if quick else turns, asked, random.Random(seed), console.log
                )
            found[title] = {name: in_short(played[name]) for name in names}
            console.log(json.dumps(found[title], indent=1))
        return found

    try:
        found = asyncio.run(run())
    except ChildFailedError as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(1) from None
    measured = report.Measured(
        at=datetime.now(UTC).date().isoformat(), versions=report.versions(python), figures=found
    )
    print("\n".join(report.markdown(measured)))
    if out is not None:
        report.write(measured, out)


if __name__ == "__main__":
    app()
