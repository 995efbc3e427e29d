"""`memory-extproc` and `python -m memory_extproc`."""

from __future__ import annotations

import os

# Read when numpy is loaded, so it comes first. The products we make are too short to be shared between cores:
# OpenBLAS's second thread would only wait for the next one in a busy loop, two fifths of the sidecar's work
# while it learns. One inference has one core too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from memory_extproc.cli.root import app


def main() -> None:
    app()


if __name__ == "__main__":
    main()
