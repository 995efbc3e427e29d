"""`memory-extproc` and `python -m memory_extproc`."""

from __future__ import annotations

from memory_extproc.cli.root import app


def main() -> None:
    app()


if __name__ == "__main__":
    main()
