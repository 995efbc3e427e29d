"""Every kind of record says whether it holds text, and a forget of anything erases those that do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import memory_extproc
from memory_extproc.erasure.forgetter import Forgetter
from memory_extproc.model import RECORD_KINDS, TEXT_KINDS, ForgetScope
from tests.support.builders import ANN, BOB
from tests.unit.erasure.forgetting import World, complete

SOURCES = Path(memory_extproc.__file__).parent
CALLS = {"get_record", "put_record", "replace_record", "_get", "_put"}


def kinds_used() -> Iterator[tuple[str, str]]:
    """Where a kind of record is named, and which: as a string, or by a constant of the module."""
    for path in sorted(SOURCES.rglob("*.py")):
        source = path.read_text("utf-8")
        if "_record(" not in source:
            continue
        tree = ast.parse(source)
        constants = dict(_constants(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CALLS:
                for argument in node.args[:2]:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        yield path.name, argument.value
                    elif isinstance(argument, ast.Name) and argument.id in constants:
                        yield path.name, constants[argument.id]


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        pairs: list[tuple[ast.expr, ast.expr | None]] = []
        if isinstance(node, ast.AnnAssign):
            pairs = [(node.target, node.value)]
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            values = node.value.elts if isinstance(node.value, ast.Tuple) else []
            pairs = list(zip(node.targets[0].elts, values, strict=False))
        elif isinstance(node, ast.Assign):
            pairs = [(node.targets[0], node.value)]
        for target, value in pairs:
            if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield target.id, value.value


def test_every_kind_of_record_that_is_used_is_registered() -> None:
    used = list(kinds_used())
    assert {kind for _, kind in used} >= {"head", "response", "given", "compressed", "api", "retention"}
    assert [(where, kind) for where, kind in used if kind not in RECORD_KINDS] == []


def test_every_kind_that_is_registered_is_used() -> None:
    source = "".join(path.read_text("utf-8") for path in SOURCES.rglob("*.py") if path.name != "records.py")
    assert [kind for kind in RECORD_KINDS if f'"{kind}"' not in source] == []


async def test_a_forget_of_one_session_erases_the_records_of_every_kind_that_holds_text(
    world: World, forgetter: Forgetter
) -> None:
    for kind in RECORD_KINDS:
        for owner in (ANN, BOB):
            await world.coordination.put_record(kind, owner, "k", b"x", timedelta(days=1))
    await complete(forgetter, await forgetter.forget(ANN, ForgetScope(session="s1")))
    left = {kind for kind, owner, _ in world.coordination.records if owner == ANN}
    assert left == {kind.name for kind in RECORD_KINDS.values() if not kind.holds_text}
    assert set(TEXT_KINDS) == RECORD_KINDS.keys() - left
    assert {kind for kind, owner, _ in world.coordination.records if owner == BOB} == RECORD_KINDS.keys()
