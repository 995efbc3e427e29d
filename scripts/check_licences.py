"""Checks the licences of the packages that deploy/requirements.lock pins, as they are installed here.

A package under a licence that is not in ALLOWED fails; packages in NAMED are allowed by name, each with the reason.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

LOCK = Path(__file__).parents[1] / "deploy" / "requirements.lock"
ALLOWED = re.compile(
    r"\b(Apache|MIT|BSD|0BSD|ISC|PSF|Python Software Foundation|MPL|Mozilla Public|Unlicense|Zlib|HPND|CNRI|CC0)",
    re.IGNORECASE,
)
NAMED = {
    "python-stdnum": "LGPL-2.1-or-later: imported as it is, from files that can be replaced; in the image's SBOM",
}


def licence_of(found: Distribution) -> str:
    """The licence expression, else the classifiers, else the first line of the free text."""
    said = found.metadata
    classifiers = [each for each in said.get_all("Classifier") or () if each.startswith("License ::")]
    return said.get("License-Expression") or "; ".join(classifiers) or (said.get("License") or "").split("\n")[0]


def check(names: list[str]) -> tuple[list[str], list[str]]:
    """The faults, and the packages that are not installed on this platform."""
    faults, absent = [], []
    for name in names:
        try:
            licence = licence_of(distribution(name))
        except PackageNotFoundError:
            absent.append(name)
            continue
        if name not in NAMED and not ALLOWED.search(licence):
            faults.append(f"{name}: {licence or 'says no licence'}")
    return faults, absent


def main() -> int:
    names = re.findall(r"^([A-Za-z0-9_.-]+)==", LOCK.read_text(), re.MULTILINE)
    faults, absent = check(names)
    for fault in faults:
        print(f"{fault}: allow it in scripts/check_licences.py with a reason, or do without the package")
    print(f"{len(names) - len(absent)} packages looked at; not on this platform: {', '.join(absent) or 'none'}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
