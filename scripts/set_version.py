"""Sets the version of the program, and of the chart, which cannot read it from pyproject.toml.

`python scripts/set_version.py 0.2.0` writes pyproject.toml and helm/memory-extproc/Chart.yaml; the image and the
model's wheel read pyproject.toml. Then `make chart`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACES = {
    ROOT / "pyproject.toml": r'(?m)^(version = ")[^"]+(")$',
    ROOT / "helm" / "memory-extproc" / "Chart.yaml": r"(?m)^((?:version|appVersion): )[^\n]+()$",
}


def main(version: str) -> None:
    if not re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?", version):
        raise SystemExit(f"{version}: expected a version such as 0.2.0 or 0.2.0-rc.1")
    for path, pattern in PLACES.items():
        path.write_text(re.sub(pattern, rf"\g<1>{version}\g<2>", path.read_text()))


if __name__ == "__main__":
    main(*sys.argv[1:])
