"""Every log event of the sources, and the page that explains them: docs/reference/log-events.md.

`python -m scripts.log_events` writes levels and fields anew and keeps what the page says of each event; an event
that it does not know yet stands there without a word, which the suite does not let pass.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "log-events.md"
_LEVELS = frozenset({"debug", "info", "warning", "error"})
_LOGGERS = frozenset({"log", "_log", "_LOG", "logger"})
HEAD = """\
# Log events

One name for each thing that happens; it never changes its meaning. Beside its own fields a line has `event`,
`level` and `time`, and where it is about an exchange `trace_id`, `request_id` and `caller`, a keyed hash. No line
holds anybody's words, names or ids. `kind` and `error` are kinds of errors, `detail` a sentence of ours.

| event | level | fields | what happened |
|---|---|---|---|
"""


class NotPlainError(Exception):
    """An event that can be known only while it is logged."""


@dataclass(frozen=True)
class Event:
    name: str
    levels: tuple[str, ...]
    fields: tuple[str, ...]  # of all places that log it


def events(sources: Path = ROOT / "memory_extproc") -> list[Event]:
    """By name. NotPlainError for an event whose name or fields are not written where it is logged."""
    levels: dict[str, set[str]] = {}
    fields: dict[str, set[str]] = {}
    for path in sorted(sources.rglob("*.py")):
        for call in _logged(ast.parse(path.read_text(encoding="utf-8"))):
            name = call.args[0] if call.args else None
            if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
                raise NotPlainError(f"{path}:{call.lineno}: an event's name is written where it is logged")
            if not isinstance(call.func, ast.Attribute) or any(each.arg is None for each in call.keywords):
                raise NotPlainError(f"{path}:{call.lineno}: an event's fields are written where it is logged")
            levels.setdefault(name.value, set()).add(call.func.attr)
            fields.setdefault(name.value, set()).update(each.arg for each in call.keywords if each.arg)
    return [Event(name, tuple(sorted(levels[name])), tuple(sorted(fields[name]))) for name in sorted(levels)]


def _logged(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LEVELS:
            of = node.func.value
            named = of.func if isinstance(of, ast.Call) else of
            if isinstance(named, ast.Name) and named.id in _LOGGERS:
                yield node


def explained(page: str) -> dict[str, str]:
    """What *page* says of each event."""
    rows = (line.split(" | ") for line in page.splitlines() if line.startswith("| `"))
    return {row[0].removeprefix("| ").strip("`"): row[-1].removesuffix("|").strip() for row in rows}


def written(found: list[Event], said: dict[str, str]) -> str:
    """The page."""
    rows = (
        f"| `{each.name}` | {', '.join(each.levels)} | {', '.join(f'`{name}`' for name in each.fields) or '-'} | "
        f"{said.get(each.name, '')} |\n"
        for each in found
    )
    return HEAD + "".join(rows)


def main() -> int:
    said = explained(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    PAGE.write_text(written(events(), said), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
