"""Check that code reads as CONTRIBUTING.md asks: ordinary subjects, named things, whole ideas per file.

- prose: no sentence of a docstring or comment begins with a free relative ("What was asked goes"), and few words
  stand in for a subject (what, one, those, nobody): at most 12 in a thousand words;
- names: no function is called by a bare participle (`told`, `held`);
- sliver: a module below 100 lines whose only importer is in its own package belongs into that importer;
- file: a module that a docstring or comment names (`dialect/base.py`) exists;
- constructor: no `__init__` takes more than nine arguments: collaborators own parts of the work;
- size: no module has more than 700 lines.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "memory_extproc"

MAX_LINES = 700
MAX_ARGUMENTS = 9
SLIVER_LINES = 100
WORDS_PER_THOUSAND = 12
# Files with little prose are not judged by a share: that many of the words pass anywhere.
FREE_WORDS = 3

# Words that stand where a sentence should name its subject.
_VAGUE = re.compile(
    r"\b(what|whatever|who|whoever|whom|one|ones|those|nobody|somebody|anybody|everybody|told)\b", re.IGNORECASE
)
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
# A sentence whose subject is a clause: "What was asked up to a moment goes."
_FREE_RELATIVE = re.compile(r"^(?:What|Whatever|Who|Whoever|Whom|Those|Of)\b(?!.*\?$)")
_SENTENCE = re.compile(r"(?<=[.!?;:])\s+")
# Words that end like participles and are names like any other.
_NAMES_IN_ED = frozenset(
    {"embed", "reembed", "seed", "feed", "need", "shed", "speed", "proceed", "exceed", "succeed"}
)
_PARTICIPLE = re.compile(
    r"^_*(?:[a-z]+ed|told|held|given|heard|kept|made|said|found|left|sent|shown|known|taken|gone|drawn|done|sought"
    r"|meant|lost|hidden|broken|chosen|written|begun)$"
)
# A module of this project, not of a library that is named with its package.
_FILE = re.compile(r"(?<![\w/.-])(?!milvus_lite/)(?:[a-z_]+/){0,2}[a-z_0-9]+\.py\b")
_SKIP_PARTS = {"gen"}


@dataclass(frozen=True)
class Finding:
    path: str
    line: int
    rule: str
    text: str


def source_files() -> list[Path]:
    return sorted(path for path in (ROOT / PACKAGE).rglob("*.py") if not _SKIP_PARTS & set(path.parts))


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Each docstring and each block of comments, with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text
    block: list[str] = []
    start = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or token.string.startswith(("#!", "# type:", "# noqa", "# fmt:")):
            continue
        text = token.string.lstrip("#").split("# noqa")[0].strip()
        if block and token.start[0] != last + 1:
            yield start, " ".join(block)
            block = []
        if not block:
            start = token.start[0]
        block.append(text)
        last = token.start[0]
    if block:
        yield start, " ".join(block)


def check_prose(path: str, source: str) -> list[Finding]:
    relatives, vague, words = [], [], 0
    for line, text in prose(source):
        words += len(_WORD.findall(text))
        for sentence in _SENTENCE.split(" ".join(text.split())):
            finding = Finding(path, line, "prose", sentence)
            if _FREE_RELATIVE.match(sentence):
                relatives.append(finding)
            vague += [finding] * len(_VAGUE.findall(sentence))
    allowed = max(FREE_WORDS, words * WORDS_PER_THOUSAND // 1000)
    return vague if len(vague) > allowed else relatives


def check_names(path: str, source: str) -> list[Finding]:
    findings = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_property(node):
            continue
        if _PARTICIPLE.match(node.name) and node.name.strip("_") not in _NAMES_IN_ED:
            findings.append(Finding(path, node.lineno, "names", f"def {node.name}"))
    return findings


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(
        isinstance(one, ast.Name) and one.id in {"property", "cached_property"} for one in node.decorator_list
    )


def check_constructors(path: str, source: str) -> list[Finding]:
    findings = []
    for owner in ast.walk(ast.parse(source)):
        if not isinstance(owner, ast.ClassDef):
            continue
        for node in owner.body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                count = len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]) - 1
                if count > MAX_ARGUMENTS:
                    findings.append(Finding(path, node.lineno, "constructor", f"{owner.name}: {count} arguments"))
    return findings


def check_files_named(path: str, source: str, known: frozenset[str]) -> list[Finding]:
    """*known*: the names of all Python files of the repository, without their directories."""
    return [
        Finding(path, line, "file", f"{named} does not exist")
        for line, text in prose(source)
        for named in _FILE.findall(text)
        if named.rpartition("/")[2] not in known
    ]


def check_size(path: str, source: str) -> list[Finding]:
    lines = source.count("\n")
    return [Finding(path, lines, "size", f"{lines} lines")] if lines > MAX_LINES else []


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, modules: set[str]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
            found.add(node.module)
    return found & modules


def slivers(files: list[Path]) -> list[Finding]:
    modules = {module_name(path): path for path in files}
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for name, path in modules.items():
        for imported in imports_of(path, set(modules)):
            if imported != name:
                importers[imported].add(name)
    findings = []
    for name, path in modules.items():
        lines = path.read_text().count("\n")
        if path.name in {"__init__.py", "__main__.py"} or lines >= SLIVER_LINES or len(importers[name]) != 1:
            continue
        [importer] = importers[name]
        if importer.rpartition(".")[0] == name.rpartition(".")[0]:
            text = f"{lines} lines, and only {importer} imports it"
            findings.append(Finding(str(path.relative_to(ROOT)), 1, "sliver", text))
    return findings


def check_all(files: list[Path]) -> list[Finding]:
    findings = slivers(files)
    known = frozenset(
        path.name for folder in (PACKAGE, "scripts", "tests") for path in (ROOT / folder).rglob("*.py")
    )
    for path in files:
        name, source = str(path.relative_to(ROOT)), path.read_text()
        findings += check_prose(name, source) + check_names(name, source) + check_size(name, source)
        findings += check_files_named(name, source, known) + check_constructors(name, source)
    return findings


def main() -> int:
    findings = check_all(source_files())
    for one in findings:
        print(f"{one.path}:{one.line}: {one.rule}: {one.text}")
    if findings:
        print(f"{len(findings)} findings; see the rules in {Path(__file__).name}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
