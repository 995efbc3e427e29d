"""The memory API's proto: buf's rules for it, and nothing taken away or changed that clients may rely on.

`--release` writes down the proto as it is now: what clients may rely on from then on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from generate_protos import ROOT, annotations
from grpc_tools import protoc

SOURCE = "memory/v1/memory.proto"
RELEASED = ROOT / "proto" / "memory" / "v1" / "released.binpb"
BUF = ROOT / ".tools" / "buf" / "node_modules" / "@bufbuild" / "buf-linux-x64" / "bin" / "buf"
# A method that is about one resource answers with the resource (AIP-131, AIP-134), not with a wrapping of it.
BARE = ["RPC_RESPONSE_STANDARD_NAME", "RPC_REQUEST_RESPONSE_UNIQUE"]
CONFIG = json.dumps(
    {
        "version": "v2",
        "lint": {"use": ["STANDARD", "COMMENTS"], "except": BARE},
        "breaking": {"use": ["FILE", "WIRE_JSON"]},
    }
)


def describe(into: Path, *options: str) -> None:
    """Writes the proto and what it imports as one file of descriptors."""
    code = protoc.main(
        [
            "protoc",
            f"--proto_path={ROOT / 'proto'}",
            f"--proto_path={files('grpc_tools').joinpath('_proto')}",
            f"--proto_path={annotations()}",
            "--include_imports",
            *options,
            f"--descriptor_set_out={into}",
            SOURCE,
        ]
    )
    if code:
        raise SystemExit(f"protoc failed on {SOURCE}")


def main() -> None:
    if "--release" in sys.argv[1:]:
        describe(RELEASED)
        return
    with tempfile.TemporaryDirectory() as scratch:
        now = Path(scratch) / "now.binpb"
        describe(now, "--include_source_info")
        for command in (["lint", str(now)], ["breaking", str(now), "--against", str(RELEASED)]):
            done = subprocess.run([BUF, *command, "--path", SOURCE, "--config", CONFIG], check=False)
            if done.returncode:
                raise SystemExit(f"buf {command[0]} found faults in {SOURCE}")


if __name__ == "__main__":
    main()
