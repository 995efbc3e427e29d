"""From a YAML file and the environment to `Settings`, or to every fault at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from memory_extproc.errors import ConfigurationError
from memory_extproc.settings.agreement import broken
from memory_extproc.settings.environment import lay_over
from memory_extproc.settings.faults import Place, faults_of, unknown_key
from memory_extproc.settings.root import Settings
from memory_extproc.settings.shape import is_section
from memory_extproc.settings.yaml_file import read


def load(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """The configuration in the file at *path*, changed by `MEMORY_EXTPROC__SECTION__KEY` in *environ*.

    Without a path: the defaults and the environment. Lists and mappings in the environment are JSON; an entry
    of a list is reached by its number (`MEMORY_EXTPROC__EXTERNAL_MODELS__0__LLM_MODEL_NAME`). Raises
    ConfigurationError with every fault found, each with its path; no fault repeats the value of a secret.
    """
    tree = read(path) if path is not None else {}
    faults, sources = lay_over(tree, environ)
    sections, more = _sections(tree, sources)
    faults += [*more, *broken(sections)]
    if faults:
        raise ConfigurationError(faults)
    return Settings(**sections)


def _sections(tree: Mapping[str, Any], sources: Mapping[Place, str]) -> tuple[dict[str, Any], list[str]]:
    """What is sound by itself, and the faults of the rest."""
    sound: dict[str, Any] = {}
    faults: list[str] = []
    for name, field in Settings.model_fields.items():
        # A section whose keys are all commented out is there, and empty.
        if name not in tree or (tree[name] is None and is_section(field.annotation)):
            sound[name] = field.get_default(call_default_factory=True)
            continue
        try:
            sound[name] = _adapter(field).validate_python(tree[name])
        except ValidationError as error:
            faults += faults_of(error, (name,), Settings, sources)
    faults += [unknown_key((name,), Settings, sources) for name in tree if name not in Settings.model_fields]
    return sound, faults


def _adapter(field: FieldInfo) -> TypeAdapter[Any]:
    kind: Any = field.annotation
    for constraint in field.metadata:
        kind = Annotated[kind, constraint]
    return TypeAdapter(kind)
