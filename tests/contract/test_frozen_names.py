"""Every name that an earlier version showed to others or stored is still there and means the same.

More may be added. What was taken away on purpose stands in GONE with the reason; it is in the CHANGELOG too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scripts.log_events import events
from tests.support import frozen_names

VERSIONS = sorted(path.parent for path in Path(__file__).parents[1].joinpath("frozen").glob("*/names.json"))
every_version = pytest.mark.parametrize("frozen", VERSIONS, ids=lambda path: path.name)
# "kind: name" or "kind: name part" → why it went. An enum is called by its values, one after another.
GONE: Mapping[str, str] = {
    "enums: all nobody tenant": "never stored nor sent: two settings of memory.global in one, read themselves now",
    "enums: active gradual shadow": "the values of memory.mode, which the setting itself has",
    "enums: off remember remember_and_forget": "the values of memory.chat_commands, which the setting itself has",
    **dict.fromkeys(
        (
            "metrics: memory_extproc_files_put_back",
            "log_events: file.lost",
            "log_events: file.put_back",
            "log_events: store.not_put_back",
        ),
        "files that are gone or exchanged are detected, not put back",
    ),
    **dict.fromkeys(
        (
            "commands: memory-extproc store migrate",
            "log_events: migration.begins",
            "log_events: migration.ended",
            "log_events: store.schema_older",
            "enums: copy in place",
            "enums: current done due",
        ),
        "no schema before today's was ever released",
    ),
    "log_events: sidecar.cut_off": "the supervisor ends a process that does not end",
}

# Setting → its default today, and why it is another one than it was. The key itself must stay.
CHANGED_DEFAULTS: Mapping[str, tuple[Any, str]] = {
    "listen.http": (
        "127.0.0.1:9190",
        "metrics of a bare process are for its own machine; image, chart and compose name 0.0.0.0",
    ),
    "data_dir": (
        "",
        "`serve` with no file keeps data in the user's data directory; ./data stays where it was made",
    ),
    "inject.unknown_window_budget": (
        1024,
        'a router\'s "auto" is no known model, and an overview was cut to a quarter of inject.overview_budget',
    ),
}


def of(frozen: Path, kind: str) -> Any:
    """The names of one kind of that version; at least one."""
    found = json.loads((frozen / "names.json").read_text(encoding="utf-8"))[kind]
    assert found
    if isinstance(found, dict):
        return {name: value for name, value in found.items() if f"{kind}: {name}" not in GONE}
    return [name for name in found if f"{kind}: {name}" not in GONE]


def keeps(new: Mapping[str, Any], frozen: Path, kind: str) -> None:
    """Every name, with all that belonged to it."""
    old = of(frozen, kind)
    assert [name for name in old if name not in new] == []
    lost = [f"{kind}: {name} {part}" for name, parts in old.items() for part in parts if part not in new[name]]
    assert [one for one in lost if one not in GONE] == []


def test_there_are_names_of_an_earlier_version() -> None:
    assert VERSIONS


@every_version
def test_metrics_keep_their_names_kinds_and_labels(frozen: Path) -> None:
    """In their order: no label more either, which would change every sum of a dashboard."""
    new, old = frozen_names.metrics(), of(frozen, "metrics")
    assert {name: new.get(name) for name in old} == old


@every_version
def test_log_events_keep_their_names_and_fields(frozen: Path) -> None:
    new = {each.name: each.fields for each in events()}
    keeps(new, frozen, "log_events")


@every_version
def test_settings_keep_their_keys_and_defaults(frozen: Path) -> None:
    new, old = frozen_names.settings(), of(frozen, "settings")
    assert [key for key in old if key not in new] == []
    assert {key: new[key] for key in old} == old | {key: now for key, (now, _) in CHANGED_DEFAULTS.items()}


@every_version
@pytest.mark.parametrize("kind", ["environment", "headers", "paths"])
def test_names_outside_the_configuration_are_kept(frozen: Path, kind: str) -> None:
    every = frozen_names.literals()
    assert [name for name in of(frozen, kind) if name not in every] == []


@every_version
def test_commands_keep_their_names_options_and_arguments(frozen: Path) -> None:
    keeps(frozen_names.commands(), frozen, "commands")


@every_version
def test_enums_keep_their_values(frozen: Path) -> None:
    """Some enum has all that one had: how it is called in Python is free."""
    new = [set(values) for values in frozen_names.enums()]
    lost = [values for values in of(frozen, "enums") if not any(set(values) <= one for one in new)]
    assert [name for values in lost if (name := f"enums: {' '.join(map(str, values))}") not in GONE] == []


@every_version
def test_messages_keep_their_fields_numbers_and_calls(frozen: Path) -> None:
    new, old = frozen_names.messages_of_all(), of(frozen, "messages")
    keeps(new, frozen, "messages")
    changed = [f"{name}.{part}" for name, parts in old.items() for part in parts if new[name][part] != parts[part]]
    assert changed == []


@every_version
def test_rows_of_the_store_keep_their_fields(frozen: Path) -> None:
    assert set(of(frozen, "row_fields")) <= set(frozen_names.row_fields())


@every_version
async def test_tables_keep_their_columns(frozen: Path) -> None:
    keeps(await frozen_names.tables(), frozen, "tables")


@every_version
def test_records_keep_their_fields(frozen: Path) -> None:
    """Some class has all that one had, in the same places where places count: its own name is free."""
    new = [(one["fields"], one["by_place"]) for one in frozen_names.records().values()]

    def kept(fields: list[str], *, by_place: bool) -> bool:
        if by_place:
            return any(places and one[: len(fields)] == fields for one, places in new)
        return any(not places and set(fields) <= set(one) for one, places in new)

    old = of(frozen, "records")
    assert [name for name, one in old.items() if not kept(one["fields"], by_place=one["by_place"])] == []


@every_version
@pytest.mark.parametrize("kind", ["record_kinds", "metadata_keys", "audit_keys"])
def test_what_is_stored_is_called_as_before(frozen: Path, kind: str) -> None:
    every = set(frozen_names.METADATA_KEYS) if kind == "metadata_keys" else frozen_names.words()
    assert [name for name in of(frozen, kind) if name not in every] == []
