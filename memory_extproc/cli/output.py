"""The memory API's answers: tables for people, JSON with the API's own names for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from google.protobuf.message import Message

_SHOWN = 300  # characters of a memory in a list
_WIDE = 130  # columns from which on a table has room for ids, which are there to be copied


def plain(message: Message) -> dict[str, Any]:
    """As REST would answer: names as in the proto, times as RFC 3339, zeros and empty texts too."""
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415 - quick `--help`

    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def show_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def show_answer(answer: Any, show: Callable[[Any], None], *, as_json: bool) -> None:
    """Print an answer of the API as JSON, or as *show* does."""
    if as_json:
        show_json(plain(answer))
    else:
        show(answer)


def console() -> Console:
    return Console(highlight=False)


def strip_controls(text: str) -> str:
    """Remove terminal control characters: a memory's text is untrusted."""
    return "".join(character if character.isprintable() or character == "\n" else "\ufffd" for character in text)


def show_memories(memories: Iterable[Any], *, relevance: Iterable[float] | None = None) -> None:
    """A table if the terminal is wide enough; otherwise, and without a terminal, two lines for each memory, the
    second starting with its id."""
    scored = [(memory, "") for memory in memories]
    if relevance is not None:
        scored = [(memory, f"{score:.2f}") for (memory, _), score in zip(scored, relevance, strict=True)]
    out = console()
    if out.width < _WIDE:
        for memory, score in scored:
            about = [memory.id, score, *_kind_of(memory)]
            out.print(_text_of(memory), soft_wrap=True)
            out.print(Text("  ".join(("", *filter(None, about))), style="dim"), soft_wrap=True)
        return
    table = Table()
    for name in (*(("relevance",) if relevance is not None else ()), "memory", "type", "since", "id"):
        table.add_column(name, justify="right" if name == "relevance" else "left", no_wrap=name == "id")
    for memory, score in scored:
        kind, since, *state = _kind_of(memory)
        said = Text("\n").join([_text_of(memory), *(Text(f"({word})", style="dim") for word in state)])
        table.add_row(*([score] if score else []), said, kind, since, memory.id)
    out.print(table)


def _text_of(memory: Any) -> Text:
    words = strip_controls(memory.content)
    return Text(words if len(words) <= _SHOWN else f"{words[:_SHOWN]}…")


def _kind_of(memory: Any) -> list[str]:
    """Its type, since when it is remembered, and its state where it does not hold."""
    state = [memory.state] if memory.state and memory.state != "active" else []
    return [memory.type, f"{memory.created_at.ToDatetime():%Y-%m-%d}", *state]


def format_count(count: int) -> str:
    return "1 memory" if count == 1 else f"{count} memories"


def show_memory(memory: Any) -> None:
    """All fields of a memory."""
    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in plain(memory).items():
        if name not in {"content", "history"} and value not in ("", 0, {}, "0", []):
            shown = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)
            table.add_row(name, Text(strip_controls(shown)))
    console().print(Text(strip_controls(memory.content)), soft_wrap=True)
    console().print(table)
    for before in memory.history:
        console().print(
            Text(f"until {before.valid_to.ToDatetime():%Y-%m-%d}: {strip_controls(before.content)}", style="dim"),
            soft_wrap=True,
        )


def show_receipt(receipt: Any) -> None:
    table = Table("store", "state", "removed", "by when", "still to happen")
    for store in receipt.stores:
        until = f"{store.pending_until.ToDatetime():%Y-%m-%d %H:%M}" if store.HasField("pending_until") else ""
        table.add_row(store.store, store.state, str(store.removed), until, store.note)
    console().print(
        f"receipt {receipt.id}: {receipt.state}, {format_count(receipt.memories)}, {receipt.scope}", markup=False
    )
    if receipt.stores:
        console().print(table)
    if receipt.signature:
        console().print(f"signed with key {receipt.key_id}", markup=False)


def show_stats(stats: Any) -> None:
    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column()
    for name, value in plain(stats).items():
        shown = (
            ", ".join(f"{key} {count}" for key, count in value.items()) if isinstance(value, dict) else str(value)
        )
        table.add_row(name.replace("_", " "), shown)
    console().print(table)


def show_explanation(explained: Any) -> None:
    said = [f"outcome {explained.outcome}"]
    said += [f"{name} {getattr(explained, name)}" for name in ("gate", "path", "kind") if getattr(explained, name)]
    if explained.HasField("worth"):
        said.append(f"anything worth injecting {explained.worth:.3f}")
    console().print(", ".join(said), markup=False)
    if explained.query:
        console().print(Text(f"searched for: {strip_controls(explained.query)}"), soft_wrap=True)
    for note in explained.notes:
        console().print(Text(f"note: {note}"), soft_wrap=True)
    table = Table("verdict", "relevance", "memory", "features", show_lines=True)
    for one in explained.considered:
        features = "\n".join(f"{name} {value:.3f}" for name, value in sorted(one.features.items()))
        words = Text(strip_controls(one.memory.content)[:_SHOWN])
        table.add_row(one.verdict.replace("_", " "), f"{one.relevance:.3f}", words, features)
    if explained.considered:
        console().print(table)


def show_plan(plan: Any) -> None:
    if plan.would_forget:
        show_memories(plan.would_forget)
    console().print(f"{format_count(plan.total)} would be forgotten")


def show_results(found: Any) -> None:
    if found.results:
        show_memories([one.memory for one in found.results], relevance=[one.relevance for one in found.results])
    else:
        console().print("nothing relevant enough")


def show_stored(stored: Any) -> None:
    console().print(f"{stored.decision}: {stored.memory.id}", markup=False)
    for memory in stored.extracted:
        console().print(f"  {memory.id}  {memory.content}", markup=False)


def show_forget(done: Any) -> None:
    console().print(done.message, markup=False)
    show_receipt(done.receipt)


def show_configuration(answer: Any) -> None:
    """As `config show` prints a file's, followed by comments with the changes that need a restart."""
    import yaml  # noqa: PLC0415 - quick `--help`

    said = plain(answer)
    typer.echo(strip_controls(yaml.safe_dump(said["configuration"], sort_keys=False, allow_unicode=True)), nl=False)
    for key in said["needs_restart"]:
        typer.echo(strip_controls(f"# takes effect with the next start: {key}"))
