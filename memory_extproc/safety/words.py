"""The word lists of this package."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

WORDS: Mapping[str, Any] = tomllib.loads((files(__package__) / "words.toml").read_text(encoding="utf-8"))
