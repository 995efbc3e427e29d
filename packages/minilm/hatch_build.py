"""Puts the prepared model into the wheel, after every file was found to be what its manifest says."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODEL = "all-MiniLM-L6-v2-int8"


class ModelFiles(BuildHookInterface):  # type: ignore[type-arg, misc]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the interface's
        models = Path(os.environ.get("MEMORY_EXTPROC_MODELS", Path(self.root).parents[1] / "models"))
        source = (models / MODEL).resolve()
        manifest = json.loads((source / "manifest.json").read_text())
        for name, wanted in manifest["files"].items():
            if hashlib.sha256((source / name).read_bytes()).hexdigest() != wanted["sha256"]:
                raise SystemExit(f"{source / name} is not what its manifest says: make models")
        for name in (*manifest["files"], "manifest.json"):
            build_data["force_include"][str(source / name)] = f"memory_extproc_minilm/{MODEL}/{name}"
