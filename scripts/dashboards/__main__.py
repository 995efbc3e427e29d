"""`python -m scripts.dashboards` writes the dashboards of the chart; with `--check` it says whether they are up to
date, and exits 1 if not."""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.dashboards.writing import BOARDS, written

DASHBOARDS = Path(__file__).parents[2] / "helm" / "memory-extproc" / "dashboards"

for name in BOARDS:
    target = DASHBOARDS / f"{name}.json"
    if sys.argv[1:] != ["--check"]:
        target.write_text(written(name))
    elif not target.exists() or target.read_text() != written(name):
        raise SystemExit(f"{target.name} is not up to date: python -m scripts.dashboards")
