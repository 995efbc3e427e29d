"""`memory-extproc eval`: the quality of recall on a data set, in figures.

`from-feedback` makes labels of ratings and corrections, over the memory API. A request is labelled where a person
has judged a memory that it was given:

- rated helpful, or corrected since: the memory belonged there, so it is relevant;
- rated wrong: it did not, so it is unwanted.

A memory without a judgement is neither. Ratings are of memories, not of answers, so one rating labels every kept
request that was given the memory: weak labels, to be measured with and not to be trusted one by one.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
import yaml
from rich.console import Console
from rich.table import Table

from memory_extproc.cli.api_client import ApiClient, ApiError, with_api
from memory_extproc.cli.config import AsJson, faults_to_exit, progress
from memory_extproc.cli.output import show_json
from memory_extproc.errors import PermanentError
from memory_extproc.observe import log
from memory_extproc.settings import Settings, load

if TYPE_CHECKING:
    from memory_extproc.evaluation.runner import Bounds, System


app = typer.Typer(help="Measure recall on a data set and fit its weights.", no_args_is_help=True)

# The values of evaluation.runner.System and of learn.extractor. They are not imported, because the modules behind
# them take half a second to load, and `--help` need not wait for that. A test compares them.
SYSTEMS = ("hybrid", "dense", "lexical", "bm25", "store")
EXTRACTORS = ("auto", "llm", "rules", "off")

Dataset = Annotated[Path, typer.Option("--dataset", help="LoCoMo's JSON, or our JSON lines (docs/evaluation.md)")]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="YAML file; by default the built-in defaults and the environment"),
]


def _one_of(*names: str) -> Any:
    def check_value(value: str | None) -> str | None:
        if value is not None and value not in names:
            raise typer.BadParameter(f"expected one of {', '.join(names)}")
        return value

    return check_value


LimitQuestions = Annotated[int | None, typer.Option(min=1, help="maximum number of questions, spread evenly")]
OtherExtractor = Annotated[
    str | None,
    typer.Option(callback=_one_of(*EXTRACTORS), metavar="|".join(EXTRACTORS), help="instead of learn.extractor"),
]
ByIntent = Annotated[
    bool,
    typer.Option(
        "--by-intent", help="read a set of questions by kind; --limit-questions then applies to each kind"
    ),
]
Unbounded = Annotated[
    bool, typer.Option("--unbounded", help="recall without a deadline, and wait for word vectors")
]
HeldHalf = Annotated[
    bool, typer.Option("--held", help="with --by-intent and a folder: use the half that is never used for fitting")
]


@app.command()
def recall(
    dataset: Dataset,
    config: ConfigFile = None,
    system: Annotated[
        str, typer.Option(callback=_one_of(*SYSTEMS), metavar="|".join(SYSTEMS), help="system to measure")
    ] = SYSTEMS[0],
    report: Annotated[Path | None, typer.Option(help="directory to write an HTML report with plots to")] = None,
    limit_questions: LimitQuestions = None,
    threshold: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="minimum relevance; by default the configured one")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, max=20, help="maximum number of injected memories; by default the configured one"),
    ] = None,
    extractor: OtherExtractor = None,
    *,
    topics: Annotated[
        bool, typer.Option("--topics", help="also summarise topics and sessions, as the sidecar does; takes longer")
    ] = False,
    by_intent: ByIntent = False,
    held: HeldHalf = False,
    unbounded: Unbounded = False,
    as_json: AsJson = False,
) -> None:
    """Learn the conversations of a data set as the sidecar would, ask its questions and measure the results."""
    with faults_to_exit():
        settings = _with(load(config, os.environ), extractor)
        log.configure("error", "console")
        from memory_extproc.evaluation.runner import Bounds, System  # noqa: PLC0415 - see SYSTEMS

        memory = settings.memory
        bounds = Bounds(
            memory.default_similarity_threshold if threshold is None else threshold,
            memory.default_retrieval_limit if limit is None else limit,
        )
        if by_intent:
            measured = _measure_intents(settings, dataset, bounds, limit_questions, held=held, unbounded=unbounded)
        else:
            measured = _measure_system(
                settings,
                dataset,
                System(system),
                bounds,
                limit_questions,
                report,
                topics=topics,
                unbounded=unbounded,
            )
        found = asyncio.run(measured)
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    if by_intent:
        _show_intents(found)
        return
    _show(found)
    if report is not None:
        Console().print(f"report: {report / 'index.html'}", soft_wrap=True)


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="configuration (YAML) or weights (JSON)")],
    second: Annotated[Path, typer.Argument(help="configuration or weights to compare with")],
    dataset: Dataset,
    config: ConfigFile = None,
    limit_questions: LimitQuestions = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Compare two configurations or weights question by question."""
    with faults_to_exit():
        settings = [_of_file(path, config) for path in (first, second)]
        log.configure("error", "console")
        found = asyncio.run(_compare(settings, dataset, limit_questions))
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    table = Table(title=f"{dataset.name}: {first.name} and {second.name}", title_justify="left")
    for name in ("", "figure", "questions", "first", "second", "difference", "95 %", "better", "worse", "p"):
        table.add_column(name, justify="left" if name in {"", "figure"} else "right")
    for group, figures in found.items():
        for name, row in figures.items():
            if isinstance(row, dict) and row["interval"]:
                shares = (_share(row[key]) for key in ("first", "second", "difference"))
                bounds = " to ".join(f"{bound:+.3f}" for bound in row["interval"])
                counts = (str(row["better"]), str(row["worse"]), f"{row['p']:.3f}")
                table.add_row(group, name, str(figures["questions"]), *shares, bounds, *counts)
    Console(highlight=False).print(table)


def _of_file(path: Path, config: Path | None) -> Settings:
    """*path* as the configuration, or as the weights of *config*."""
    if path.suffix != ".json":
        return load(path, os.environ)
    settings = load(config, os.environ)
    return settings.model_copy(update={"recall": settings.recall.model_copy(update={"weights": str(path)})})


async def _compare(settings: list[Settings], dataset: Path, limit_questions: int | None) -> dict[str, Any]:
    from memory_extproc.evaluation.bench import bench  # noqa: PLC0415 - see SYSTEMS
    from memory_extproc.evaluation.datasets import read_dataset  # noqa: PLC0415
    from memory_extproc.evaluation.metrics import compare_runs  # noqa: PLC0415
    from memory_extproc.evaluation.runner import Bounds, System, run  # noqa: PLC0415

    read, runs = read_dataset(dataset), []
    for one in settings:
        memory = one.memory
        bounds = Bounds(memory.default_similarity_threshold, memory.default_retrieval_limit)
        with progress() as says:
            async with bench(one, unbounded=True) as made:
                runs.append(
                    await run(read, System.HYBRID, made, bounds, limit_questions=limit_questions, says=says)
                )
    return compare_runs(*runs)


@app.command()
def tune(
    dataset: Annotated[
        list[Path], typer.Option("--dataset", help="data set in LoCoMo's JSON or in JSON lines; may be repeated")
    ],
    config: ConfigFile = None,
    out: Annotated[Path, typer.Option(help="weights file to write")] = Path("weights.json"),
    *,
    features: Annotated[
        bool, typer.Option("--features", help="also measure the contribution of each feature; takes long")
    ] = False,
    settings_out: Annotated[
        Path | None,
        typer.Option(
            help="file to write the best candidates, half_life, mmr_lambda and threshold to, found by a grid search"
        ),
    ] = None,
    by_intent: Annotated[
        Path | None,
        typer.Option(help="set or folder of sets of questions by kind, to fit the gate of each kind on"),
    ] = None,
    limit_questions: Annotated[
        int | None, typer.Option(min=1, help="maximum number of questions in the grid search, spread evenly")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fit recall's weights on conversations, measure them on held-out conversations, and write them to a file."""
    with faults_to_exit():
        settings = load(config, os.environ)
        log.configure("error", "console")
        said = asyncio.run(tune_weights(settings, dataset, out, features=features, by_intent=by_intent))
        if settings_out is not None:
            said["grid"] = asyncio.run(_choose_settings(settings, dataset, out.absolute(), limit_questions))
            settings_out.write_text(yaml.safe_dump(said["grid"]["settings"], sort_keys=False))
    if as_json:
        typer.echo(json.dumps(said, indent=2, ensure_ascii=False, default=str))
        return
    show_tuned(said)
    Console().print(f"weights: {out}", soft_wrap=True)
    if settings_out is not None:
        _show_grid(said["grid"])
        Console().print(f"settings: {settings_out}", soft_wrap=True)


async def tune_weights(
    settings: Settings,
    datasets: list[Path],
    out: Path,
    *,
    features: bool = False,
    questions: int | None = None,
    by_intent: Path | None = None,
) -> dict[str, Any]:
    """*questions*: fit on so many of them, and only what depends on the embedding model; None: on all, and all.
    *by_intent*: fit the gate of each kind of question on this set, too."""
    from memory_extproc.evaluation.bench import bench  # noqa: PLC0415 - see SYSTEMS
    from memory_extproc.evaluation.by_intent import fit_kinds, read_intent_set  # noqa: PLC0415
    from memory_extproc.evaluation.datasets import read_datasets, thin_out  # noqa: PLC0415
    from memory_extproc.evaluation.fitting import fitted_weights, write_weights  # noqa: PLC0415
    from memory_extproc.evaluation.runner import Bounds  # noqa: PLC0415

    read = read_datasets(datasets)
    intents = None if by_intent is None else read_intent_set(by_intent)
    words = questions is None
    if questions is not None:
        read = thin_out(read, questions)
    with progress(plain=not words) as says:
        async with bench(settings) as made:
            fitted = await fitted_weights(read, made, features=features, words=words, says=says)
        weights = fitted.weights
        if intents is not None:
            async with bench(settings, topics=True, unbounded=True) as made:
                memory = settings.memory
                bounds = Bounds(memory.default_similarity_threshold, memory.default_retrieval_limit)
                kinds = await fit_kinds(intents, weights, made, bounds, says)
            weights = msgspec.structs.replace(weights, kinds={one.kind: one.chosen for one in kinds if one.chosen})
            fitted.said["kinds"] = {one.kind: {**asdict(one), "chosen": one.chosen} for one in kinds}
    write_weights(out, weights)
    return fitted.said


async def _choose_settings(
    settings: Settings, datasets: list[Path], weights: Path, limit_questions: int | None
) -> dict[str, Any]:
    from memory_extproc.evaluation.bench import bench  # noqa: PLC0415 - see SYSTEMS
    from memory_extproc.evaluation.datasets import read_datasets  # noqa: PLC0415
    from memory_extproc.evaluation.training import as_fragment, choose_settings, with_value  # noqa: PLC0415

    settings = with_value(settings, "recall.weights", str(weights))
    with progress() as says:
        chosen = await choose_settings(
            read_datasets(datasets),
            settings,
            partial(bench, unbounded=True),
            limit_questions=limit_questions,
            says=says,
        )
    fragment = as_fragment({"recall.weights": str(weights), **chosen.changes})
    return {"settings": fragment, "trials": [asdict(one) for one in chosen.trials]}


def _show_grid(said: dict[str, Any]) -> None:
    table = Table(title="settings, one after the other; * is in force behind it", title_justify="left")
    for name in ("setting", "value", "evidence injected", "abstention", "gain", "p"):
        table.add_column(name, justify="left" if name in {"setting", "value"} else "right")
    for row in said["trials"]:
        value = f"{row['value']}{' *' if row['chosen'] else ''}"
        shares = (_share(row["evidence"]), _share(row["abstention"]))
        table.add_row(row["setting"], value, *shares, f"{row['gain']:+.3f}", f"{row['p']:.2f}")
    Console(highlight=False).print(table)


def show_tuned(said: dict[str, Any]) -> None:
    console = Console(highlight=False)
    table = Table(title=f"fitted on {said['dataset']}", title_justify="left")
    columns = ("recall@5", "recall@10", "recall@20", "abstention", "loss", "precision")
    for name in ("ranker", "weights", *columns):
        table.add_column(name, justify="left" if name in {"ranker", "weights"} else "right")
    kinds = ("close", "hybrid", "lexical")
    for ranker in [name for kind in kinds for name in (kind, f"{kind}_few") if name in said]:
        figures = said[ranker]
        rows = {"packaged": figures["before"], "fitted, held out": figures["after"], "spread": figures["spread"]}
        rows |= {f"held out, {kind} alone": row for kind, row in figures["kinds"].items()}
        for label, row in rows.items():
            table.add_row(ranker, label, *(_share(row.get(column)) for column in columns))
    console.print(table)
    console.print(
        f"the packaged weights were fitted on: {said['before_fitted_on']}. Where that is the same data, they have "
        "seen it, and their row does not compare with what was held out.",
        markup=False,
    )
    if "kinds" in said:
        _show_kinds(said["kinds"])
    for row in said.get("features", ()):
        console.print(f"  without {row['left out']}: recall@5 {row['recall@5']:+.4f}, @10 {row['recall@10']:+.4f}")


def _show_kinds(kinds: dict[str, dict[str, Any]]) -> None:
    title = "gate by kind of question: answered / precision / left alone, by shift in log-odds; * is chosen"
    table = Table(title=title, title_justify="left")
    table.add_column("kind")
    table.add_column("questions", justify="right")
    for by in next(iter(kinds.values()), {}).get("answered", {}):
        table.add_column(f"{by:+.1f}", justify="right")
    for kind, found in kinds.items():
        cells = [
            f"{answered:.2f} / {found['precision'][by]:.2f} / {found['abstention'][by]:.2f}"
            f"{' *' if by == found['chosen'] else ''}"
            for by, answered in found["answered"].items()
        ]
        table.add_row(kind, str(found["questions"]), *cells)
    Console(highlight=False).print(table)


def _with(settings: Settings, extractor: str | None) -> Settings:
    if extractor is None:
        return settings
    return settings.model_copy(update={"learn": settings.learn.model_copy(update={"extractor": extractor})})


async def _measure_system(
    settings: Settings,
    dataset: Path,
    system: System,
    bounds: Bounds,
    limit_questions: int | None,
    report: Path | None,
    *,
    topics: bool,
    unbounded: bool,
) -> dict[str, Any]:
    from memory_extproc.evaluation.bench import bench  # noqa: PLC0415 - see SYSTEMS
    from memory_extproc.evaluation.datasets import read_dataset  # noqa: PLC0415
    from memory_extproc.evaluation.metrics import figures  # noqa: PLC0415
    from memory_extproc.evaluation.report import write_report  # noqa: PLC0415
    from memory_extproc.evaluation.runner import run  # noqa: PLC0415

    read = read_dataset(dataset)
    with progress() as says:
        async with bench(settings, topics=topics, unbounded=unbounded) as made:
            found = figures(await run(read, system, made, bounds, limit_questions=limit_questions, says=says))
    if report is not None:
        write_report(report, found)
    return found


async def _measure_intents(
    settings: Settings, path: Path, bounds: Bounds, limit_questions: int | None, *, held: bool, unbounded: bool
) -> dict[str, Any]:
    from memory_extproc.evaluation.bench import bench  # noqa: PLC0415 - see SYSTEMS
    from memory_extproc.evaluation.by_intent import (  # noqa: PLC0415
        ask_by_intent,
        intent_figures,
        read_intent_set,
        sample_set,
    )

    intents = read_intent_set(path, held=held)
    if limit_questions is not None:
        intents = sample_set(intents, len(intents.people), limit_questions)
    with progress() as says:
        async with bench(settings, topics=True, unbounded=unbounded) as made:
            return intent_figures(intents, await ask_by_intent(intents, made, bounds, says))


def _show_intents(found: dict[str, Any]) -> None:
    title = f"{found['dataset']}: {found['questions']} questions to {found['people']} people"
    table = Table(title=title, title_justify="left")
    columns = ("answered", "precision", "forbidden", "lines", "tokens", "abstention", "latency")
    for name in ("kind", "questions", "counterexamples", *columns):
        table.add_column(name, justify="left" if name == "kind" else "right")
    for kind, figures in found["kinds"].items():
        counts = (str(figures["questions"]), str(figures["counterexamples"]))
        table.add_row(kind, *counts, *(_share(figures[column]) for column in columns))
    Console(highlight=False).print(table)


def _show(found: dict[str, Any]) -> None:
    console = Console(highlight=False)
    table = Table(
        title=f"{found['dataset']}: {found['system']}, {found['questions']} questions", title_justify="left"
    )
    columns = ("recall@5", "recall@10", "recall@20", "ndcg@10", "mrr")
    for name in ("category", "questions", *columns):
        table.add_column(name, justify="left" if name == "category" else "right")
    for name, group in [("1 to 4", found), *found["by_category"].items()]:
        table.add_row(name, str(group["questions"]), *(_share(group[column]) for column in columns))
    console.print(table)
    injection, abstention = found["injection"], found["abstention"]
    console.print(
        f"at threshold {injection['threshold']:g} and limit {injection['limit']}: recall "
        f"{_share(injection['recall'])} (without a threshold {_share(injection['recall_without_threshold'])}), "
        f"precision {_share(injection['precision'])}, {_share(injection['memories'])} memories a question"
    )
    share, questions = _share(abstention["share"]), abstention["questions"]
    console.print(f"abstention: nothing injected for {share} of {questions} questions of others")
    answered = (f"{path} {share:.1%}" for path, share in found["paths"].items())
    console.print(f"answered: {'; '.join(answered)}")
    latency = found["latency_ms"]
    for stage, times in latency.items():
        if isinstance(times, dict):
            console.print(f"  {stage:8} p50 {times['p50']:.2f} ms, p95 {times['p95']:.2f} ms")
    if multiple := latency.get("total_over_embed_p50"):
        console.print(f"  the whole is {multiple:.2f} times one embedding of the query")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


@app.command()
def topics(
    dataset: Annotated[Path, typer.Option("--dataset", help="JSON lines of sessions with marked topic changes")],
    config: ConfigFile = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Measure how well topic changes are detected with the configured thresholds."""
    with faults_to_exit():
        settings = load(config, os.environ)
        log.configure("error", "console")
        found = asyncio.run(_topics(settings, dataset))
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    table = Table(title=f"{dataset.name}: where topics begin", title_justify="left")
    for name in ("group", "sessions", "turns", "shifts", "found", "precision", "recall", "f1"):
        table.add_column(name, justify="left" if name == "group" else "right")
    for name, group in [("all", found), *found["groups"].items()]:
        counts = [str(group[column]) for column in ("sessions", "turns", "shifts", "found")]
        table.add_row(name, *counts, *(_share(group[column]) for column in ("precision", "recall", "f1")))
    Console(highlight=False).print(table)


async def _topics(settings: Settings, dataset: Path) -> dict[str, Any]:
    from memory_extproc.evaluation.bench import embedder_of  # noqa: PLC0415
    from memory_extproc.evaluation.metrics import boundary_figures, detect_boundaries, read_sessions  # noqa: PLC0415

    sessions = read_sessions(dataset)
    async with embedder_of(settings) as embedder:
        return dict(boundary_figures(await detect_boundaries(sessions, embedder, settings.topics)))


# --- from-feedback -----------------------------------------------------------------------------------


_REQUESTS = 100  # of a user: the limit of ListDecisions
_ALL = 1_000_000  # memories of a user
_GIVEN = frozenset({"injected", "thread"})  # verdicts
_MESSAGE, _SUMMARY = frozenset({"verbatim", "question"}), "summary"  # sources of memories


@dataclass(frozen=True, slots=True)
class Labelled:
    """A request with its labels. *turn*: the memories made of its turn, messages first; empty: none is kept."""

    request: str
    at: str  # RFC 3339
    kind: str  # of question
    relevant: tuple[Any, ...] = field(repr=False)
    unwanted: tuple[Any, ...] = field(repr=False)
    turn: tuple[Any, ...] = field(repr=False)

    @property
    def question(self) -> str:
        """The words of the caller; empty where they were not kept."""
        return _join(one for one in self.turn if one.role == "user" and one.source in _MESSAGE)


@with_api
def from_feedback(
    api: ApiClient,
    *,
    out: Annotated[Path, typer.Option(help="file to write, as JSON lines")],
    user: Annotated[
        list[str] | None,
        typer.Option("--user", help="user whose requests are read, may be repeated; by default yourself"),
    ] = None,
    text: Annotated[
        bool,
        typer.Option(
            "--text", help="write a data set for the other commands, with what was said; by default ids only"
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write which memories were judged helpful, corrected or wrong for which request; needs trace.keep."""
    counts: Counter[str] = Counter(dict.fromkeys(("requests", "labelled", "relevant", "unwanted", "left out"), 0))
    lines: list[Mapping[str, Any]] = []
    with progress() as says:
        users = user or [""]
        for number, name in enumerate(users, 1):
            labelled = list(_label_requests(api, name, counts, with_turns=text))
            owner = f"u{number}"  # ids of users stay behind
            if text:
                memories, _ = (
                    api.list_pages("ListMemories", "memories", _ALL, user_id=name) if labelled else ([], 0)
                )
                lines += _as_data_set(owner, memories, labelled, counts)
            else:
                lines += [_as_ids(owner, one) for one in labelled]
            says("users", number, len(users))
    _write(out, lines)
    if as_json:
        show_json(counts)
        return
    console = Console(highlight=False)
    console.print(", ".join(f"{name} {count}" for name, count in counts.items()))
    if counts["left out"]:
        console.print("left out: the question was not kept, or nothing says which memory would have answered")
    console.print(f"labels: {out}", soft_wrap=True)


def _label_requests(api: ApiClient, user: str, counts: Counter[str], *, with_turns: bool) -> Iterator[Labelled]:
    for head in api.call("ListDecisions", user_id=user, limit=_REQUESTS).decisions:
        counts["requests"] += 1
        decision = (
            _call_if_kept(api, "GetDecision", request_id=head.request_id, user_id=user) if head.memories else None
        )
        given = [] if decision is None else [one for one in decision.considered if one.verdict in _GIVEN]
        relevant = tuple(one.memory for one in given if _is_relevant(one))
        unwanted = tuple(one.memory for one in given if _field(one.memory, "rating") == "wrong")
        if not relevant and not unwanted:
            continue
        counts["labelled"] += 1
        counts["relevant"] += len(relevant)
        counts["unwanted"] += len(unwanted)
        turn = _call_if_kept(api, "GetTurn", id=head.request_id, user_id=user) if with_turns else None
        learned = () if turn is None else tuple(turn.learned)
        yield Labelled(head.request_id, head.at.ToJsonString(), head.kind, relevant, unwanted, learned)


def _call_if_kept(api: ApiClient, method: str, **fields: Any) -> Any:
    """The answer; None where it is not kept any more."""
    try:
        return api.call(method, **fields)
    except ApiError as error:
        if error.code == "NOT_FOUND":
            return None
        raise


def _is_relevant(given: Any) -> bool:
    rating = _field(given.memory, "rating")
    corrected = given.since == "changed" and given.memory.state == "active" and _field(given.memory, "revision")
    return rating == "helpful" or (rating != "wrong" and bool(corrected))


def _field(memory: Any, name: str) -> Any:
    """A field of its metadata; None where it has none."""
    return memory.metadata[name] if name in memory.metadata else None  # noqa: SIM401 - a Struct has no `get`


def _as_ids(owner: str, one: Labelled) -> Mapping[str, Any]:
    return {
        "request": one.request,
        "owner": owner,
        "at": one.at,
        "kind": one.kind,
        "relevant": [memory.id for memory in one.relevant],
        "unwanted": [memory.id for memory in one.unwanted],
    }


def _as_data_set(
    owner: str, memories: Sequence[Any], labelled: Sequence[Labelled], counts: Counter[str]
) -> Iterator[Mapping[str, Any]]:
    """The user's messages, the memories without a message as notes, and the questions.

    A fact is learned again from its message, so a label on it stands on that message. A summary is made again
    from all that it sums up: its labels are dropped."""
    messages: dict[tuple[str, str], list[Any]] = {}
    for memory in memories:
        if memory.source in _MESSAGE and memory.role in {"user", "assistant"}:
            messages.setdefault((_turn_of(memory), memory.role), []).append(memory)

    def source_of(memory: Any) -> str:
        pieces = messages.get((_turn_of(memory), memory.role or "user")) or messages.get((_turn_of(memory), "user"))
        return str(memory.id if pieces is None else min(pieces, key=_place).id)

    notes = [one for one in memories if one.source not in {*_MESSAGE, _SUMMARY} and source_of(one) == one.id]
    known = {min(pieces, key=_place).id for pieces in messages.values()} | {one.id for one in notes}
    questions: list[Mapping[str, Any]] = []
    asked: set[str] = set()
    for one in labelled:
        relevant, unwanted = (
            sorted({source_of(memory) for memory in some if memory.source != _SUMMARY} & known)
            for some in (one.relevant, one.unwanted)
        )
        if not one.question or not relevant:
            counts["left out"] += 1
            continue
        questions.append(
            {
                "query": one.question,
                "owner": owner,
                "relevant": relevant,
                "unwanted": unwanted,
                "category": one.kind,
            }
        )
        asked.update(_turn_of(memory) for memory in one.turn)
    if not questions:
        return
    evidence = {id_ for question in questions for id_ in (*question["relevant"], *question["unwanted"])}
    for (turn, role), pieces in messages.items():
        first = min(pieces, key=_place)
        if turn in asked and first.id not in evidence:
            continue  # a question is asked, not learned
        said = {"text": _join(pieces), "at": first.created_at.ToJsonString()}
        yield {"memory": first.id, "owner": owner, **said, "session": first.session_id or turn, "role": role}
    for note in notes:
        yield {"memory": note.id, "owner": owner, "text": note.content, "at": note.created_at.ToJsonString()}
    yield from questions


def _turn_of(memory: Any) -> str:
    return str(_field(memory, "turn") or memory.id)


def _place(memory: Any) -> tuple[int, float]:
    return memory.seq, _field(memory, "piece") or 0.0


def _join(pieces: Any) -> str:
    return "\n".join(one.content for one in sorted(pieces, key=_place))


def _write(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Replace the file at once, readable by its owner only."""
    half = path.with_name(f".{path.name}.half")
    try:
        with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.writelines(msgspec.json.encode(line) + b"\n" for line in lines)
        half.replace(path)
    except OSError as error:
        raise PermanentError(f"--out: {path} cannot be written: {error.strerror}") from error


app.command()(from_feedback)
