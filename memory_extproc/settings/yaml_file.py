"""Reading the configuration's file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from memory_extproc.errors import ConfigurationError

_BOOL = "tag:yaml.org,2002:bool"


class _Loader(yaml.SafeLoader):
    """A SafeLoader in which `off` and `no` are words, as YAML 1.2 has it, and no key is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        seen: set[str] = set()
        for key, _ in node.value:
            name = key.value
            if not isinstance(name, str) or name in seen:
                problem = f"{name} is given twice" if isinstance(name, str) else "a key must be a word"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def read(path: Path) -> dict[str, Any]:
    """The file's own tree; empty for an empty file. Raises ConfigurationError when there is no such file, it
    is no YAML, or it is no mapping of sections."""
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise ConfigurationError([f"{path}: cannot be read: {error.strerror}"]) from error
    except yaml.MarkedYAMLError as error:
        raise ConfigurationError([f"{path}{_line(error)}: {error.problem}"]) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ConfigurationError([f"{path}: is not readable as YAML"]) from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigurationError([f"{path}: expected sections with keys"])
    return {str(key): value for key, value in tree.items()}


def _line(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark
    return f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""
