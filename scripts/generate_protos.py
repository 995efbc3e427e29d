"""Generates the protobuf modules from proto/. With --check, fails when what is committed differs."""

from __future__ import annotations

import re
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {"ext_proc.proto": ROOT / "memory_extproc" / "wire" / "gen"}
# protoc writes `import x_pb2 as y`, which only works from the top of sys.path.
ABSOLUTE = re.compile(r"^import (\w+_pb2) as", re.MULTILINE)


def generate(source: str, into: Path) -> None:
    wellknown = files("grpc_tools").joinpath("_proto")
    code = protoc.main(
        [
            "protoc",
            f"--proto_path={ROOT / 'proto'}",
            f"--proto_path={wellknown}",
            f"--python_out={into}",
            f"--pyi_out={into}",
            f"--grpc_python_out={into}",
            source,
        ]
    )
    if code:
        raise SystemExit(f"protoc failed on {source}")
    for made in into.glob("*_pb2_grpc.py"):
        made.write_text(ABSOLUTE.sub(r"from . import \1 as", made.read_text()))


def main() -> None:
    check = "--check" in sys.argv[1:]
    stale: list[str] = []
    for source, target in SOURCES.items():
        with tempfile.TemporaryDirectory() as scratch:
            generate(source, Path(scratch))
            for made in sorted(Path(scratch).iterdir()):
                kept = target / made.name
                if kept.exists() and kept.read_text() == made.read_text():
                    continue
                stale.append(str(kept.relative_to(ROOT)))
                if not check:
                    kept.write_text(made.read_text())
    for path in stale:
        print(f"{'out of date' if check else 'written'}: {path}")
    if check and stale:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
