"""Generates the protobuf modules from proto/. With --check, fails when what is committed differs."""

from __future__ import annotations

import sys
import tempfile
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {
    "ext_proc.proto": ROOT / "memory_extproc" / "extproc" / "gen",
    "memory/v1/memory.proto": ROOT / "memory_extproc" / "api" / "gen",
}


def annotations() -> Path:
    """The directory that google/api/annotations.proto is found under."""
    spec = find_spec("google.api")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("googleapis-common-protos is not installed")
    return Path(next(iter(spec.submodule_search_locations))).parent.parent


def generate(source: str, into: Path) -> list[Path]:
    """The modules made of *source*, somewhere under *into*."""
    code = protoc.main(
        [
            "protoc",
            f"--proto_path={ROOT / 'proto'}",
            f"--proto_path={files('grpc_tools').joinpath('_proto')}",
            f"--proto_path={annotations()}",
            f"--python_out={into}",
            f"--pyi_out={into}",
            source,
        ]
    )
    if code:
        raise SystemExit(f"protoc failed on {source}")
    return sorted(made for made in into.rglob("*") if made.is_file())


def main() -> None:
    check = "--check" in sys.argv[1:]
    stale: list[str] = []
    for source, target in SOURCES.items():
        with tempfile.TemporaryDirectory() as scratch:
            for made in generate(source, Path(scratch)):
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
