"""`memory-extproc eval`: how good recall is on a data set, in figures."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
import yaml
from rich.console import Console
from rich.table import Table

from memory_extproc.cli.config import faults_to_exit, progress
from memory_extproc.cli.feedback import from_feedback
from memory_extproc.observe import log
from memory_extproc.settings import Settings, load

if TYPE_CHECKING:
    from memory_extproc.evaluation.runner import Bounds, System

app = typer.Typer(help="Measure recall on a data set and fit its weights.", no_args_is_help=True)

# As evaluation.asking.System and settings.work.Learn have them; not imported, because what stands behind them
# takes half a second to load and `--help` need not wait for that. A test holds them together.
SYSTEMS = ("hybrid", "dense", "lexical", "bm25", "store")
EXTRACTORS = ("auto", "llm", "rules", "off")

Dataset = Annotated[Path, typer.Option("--dataset", help="LoCoMo's JSON, or our JSON lines (docs/evaluation.md)")]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="YAML file; by default the built-in defaults and the environment"),
]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object")]


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
    from memory_extproc.evaluation.grid import as_fragment, choose_settings, with_value  # noqa: PLC0415

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


app.command()(from_feedback)
