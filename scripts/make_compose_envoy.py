"""Writes deploy/compose/envoy.yaml: what `envoy-config` says for the compose stand, with the admin page where
Prometheus reaches it. With `--check` it says whether the file is up to date and exits 1 if not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

COMPOSE = Path(__file__).parents[1] / "deploy" / "compose"
TARGET = COMPOSE / "envoy.yaml"


def written() -> str:
    command = [sys.executable, "-m", "memory_extproc", "envoy-config", "--config", str(COMPOSE / "config.yaml")]
    command += ["--sidecar", "memory:50051", "--upstream", "http://llm:8000", "--identity", "trust"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    head, admin, tail = text.partition("\nadmin:\n")
    if not admin or "address: 127.0.0.1" not in tail:
        raise SystemExit("envoy-config writes its admin page otherwise than this script knows")
    return head + admin + tail.replace("address: 127.0.0.1", "address: 0.0.0.0", 1)


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        if TARGET.read_text() != written():
            raise SystemExit(f"{TARGET.name} is not up to date: python scripts/make_compose_envoy.py")
        return
    TARGET.write_text(written())


if __name__ == "__main__":
    main()
