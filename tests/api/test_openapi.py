"""The OpenAPI document is the proto's, and says of each method where it is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

from memory_extproc.api.gen import memory_pb2

ROOT = Path(__file__).parents[2]


def test_the_document_is_made_of_the_proto_as_it_is() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "generate_openapi.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_method_has_its_place_and_every_reference_its_schema() -> None:
    text = files("memory_extproc.api.gen").joinpath("openapi.json").read_text()
    document = json.loads(text)
    operations = {one["operationId"] for path in document["paths"].values() for one in path.values()}
    service = memory_pb2.DESCRIPTOR.services_by_name["MemoryService"]
    assert operations >= {method.name for method in service.methods}
    named = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert named
    assert named <= document["components"]["schemas"].keys()
