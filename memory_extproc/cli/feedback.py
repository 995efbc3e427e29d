"""`memory-extproc eval from-feedback`: labels for recall from ratings and corrections, over the memory API.

A request is labelled where a person has judged a memory that it was given:

- rated helpful, or corrected since: the memory belonged there, so it is relevant;
- rated wrong: it did not, so it is unwanted.

A memory without a judgement is neither. Ratings are of memories, not of answers, so one rating labels every kept
request that was given the memory: weak labels, to be measured with and not to be trusted one by one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from memory_extproc.cli.api_client import ApiClient, ApiError, AsJson, with_api
from memory_extproc.cli.config import progress
from memory_extproc.cli.output import show_json
from memory_extproc.errors import PermanentError

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
