"""`memory-extproc explain`: show the recall for a caller's message, with features and verdicts."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from memory_extproc.cli.config import AsJson, ConfigFile, faults_to_exit, load_settings
from memory_extproc.errors import ConfigurationError
from memory_extproc.model import Caller, Owner, RecallRequest, Scope
from memory_extproc.settings import Settings

if TYPE_CHECKING:
    from memory_extproc.model import Explanation

_SHOWN = 100  # characters of a memory in the table; --json has all of it


def explain(
    user: Annotated[str, typer.Option(help="user id whose memories are meant")],
    query: Annotated[str, typer.Option(help="message to explain")],
    tenant: Annotated[str, typer.Option(help="tenant of the user")] = "",
    project: Annotated[str, typer.Option(help="restrict the memories to one project")] = "",
    member_of: Annotated[
        list[str] | None, typer.Option(help="project of which the caller is a member; may be repeated")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="minimum relevance; by default the configured one")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, max=100, help="maximum number of injected memories; by default the configured one"),
    ] = None,
    config: ConfigFile = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show what recall would find for a message: the query and each candidate with its features and verdict.

    It reads the configured store. A Milvus Lite file allows a single process: stop the sidecar first. Beside a
    sidecar with a Milvus server it can run at any time. It prints stored messages."""
    from memory_extproc.request.admission import shared_owners  # noqa: PLC0415 - quick `--help`

    with faults_to_exit():
        settings = load_settings(config)
        memory = settings.memory
        caller = Caller(owner_of(settings, tenant, user), project=project, projects=tuple(member_of or ()))
        request = RecallRequest(
            caller=caller,
            asked=query,
            limit=memory.default_retrieval_limit if limit is None else limit,
            threshold=memory.default_similarity_threshold if threshold is None else threshold,
            scope=Scope(project=project),
            shared=shared_owners(settings.scopes, caller),
        )
        explanation = asyncio.run(_explain_recall(settings, request))
    if as_json:
        typer.echo(json.dumps(_as_json(explanation, request), indent=2, ensure_ascii=False))
    else:
        _show(explanation, request)


def owner_of(settings: Settings, tenant: str, user: str) -> Owner:
    """As the sidecar would name the caller. ConfigurationError for a name that it would not take."""
    from memory_extproc.model.owner import accept_name, accept_optional_name  # noqa: PLC0415 - quick `--help`
    from memory_extproc.request.identity import hashed_user  # noqa: PLC0415

    faults = []
    if not accept_name(user):
        faults.append("--user: expected a printable name of 1 to 256 bytes")
    if accept_optional_name(tenant) is None:
        faults.append("--tenant: expected a printable name of at most 256 bytes")
    if faults:
        raise ConfigurationError(faults)
    key = settings.privacy.key
    return Owner(tenant, user if key is None else hashed_user(key, tenant, user))


async def _explain_recall(settings: Settings, request: RecallRequest) -> Explanation:
    from memory_extproc.evaluation.bench import open_recaller  # noqa: PLC0415 - it loads store and inference

    async with open_recaller(settings) as recaller:
        return await recaller.explain(request)


def _as_json(explanation: Explanation, request: RecallRequest) -> dict[str, Any]:
    return {
        "outcome": explanation.outcome,
        "query": explanation.query,
        "gate": explanation.gate,
        "path": explanation.path,
        "total": explanation.total,
        "worth": explanation.worth,
        "kind": explanation.kind,
        "notes": list(explanation.notes),
        "threshold": request.threshold,
        "limit": request.limit,
        "considered": [
            {
                "id": one.memory.id,
                "content": one.memory.content,
                "scope": one.memory.owner.kind,
                "type": one.memory.type,
                "source": one.memory.source,
                "role": one.memory.role,
                "session": one.memory.session,
                "seq": one.memory.seq,
                "created_at": one.memory.created_at.isoformat(),
                "score": one.score,
                "relevance": one.relevance,
                "verdict": one.verdict,
                "features": dict(one.features),
            }
            for one in explanation.considered
        ],
        "block": explanation.block,
    }


def _show(explanation: Explanation, request: RecallRequest) -> None:
    from memory_extproc.safety.prompt_injection import neutralize  # noqa: PLC0415 - quick `--help`

    console = Console(highlight=False)
    said = [f"outcome {explanation.outcome}"]
    if explanation.gate is not None:
        said.append("the gate let nothing be searched")
    else:
        said.append(f"path {explanation.path}")
        said.append(f"kind of question: {explanation.kind.replace('_', ' ') or 'none'}")
        said.append(f"{'an unknown number of' if explanation.total is None else explanation.total} memories")
        said.append(f"threshold {request.threshold:g}, limit {request.limit}")
    if explanation.worth is not None:
        said.append(f"anything worth injecting: {explanation.worth:.3f}")
    console.print(", ".join(said), markup=False)
    for note in explanation.notes:
        console.print(f"note: {note}", markup=False)
    if explanation.query:
        console.print(Text.assemble("searched for: ", neutralize(explanation.query)), soft_wrap=True)
    if not explanation.considered:
        return
    table = Table(show_lines=True)
    for name in ("", "verdict", "relevance", "score", "memory", "features"):
        table.add_column(name, justify="right" if name in {"", "relevance", "score"} else "left")
    for place, one in enumerate(explanation.considered, 1):
        memory = one.memory
        words = neutralize(memory.content)
        shown = words if len(words) <= _SHOWN else f"{words[:_SHOWN]}…"
        features = "\n".join(f"{name} {value:.3f}" for name, value in one.features.items())
        table.add_row(
            str(place),
            one.verdict.value.replace("_", " "),
            f"{one.relevance:.3f}",
            f"{one.score:.3f}",
            Text(f"{shown}\n{memory.created_at:%Y-%m-%d} {memory.owner.kind} {memory.type} {memory.source}"),
            Text(features),
        )
    console.print(table)
