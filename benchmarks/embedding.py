"""The unit of the figures on CPU time: embedding one query through the graph that any encoder can have.

The product's own graph of the default model is quicker (`fused_bert_graph`); the unit stays, so that figures of
different versions can be compared.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import onnx

from memory_extproc.inference.model_files import MANIFEST, MODEL, Precision, read_manifest, record_of
from memory_extproc.inference.onnx import OnnxModel
from memory_extproc.inference.prepare import DEFAULT_SOURCE, parse_source, prepare
from memory_extproc.inference.quantize import quantise


def open_unit_model(models_dir: Path, scratch: Path) -> OnnxModel:
    """The default model with the graph of the unit. Fetches the weights unless *models_dir* has them as fp32."""
    full = prepare(parse_source(DEFAULT_SOURCE), Precision.FP32, models_dir, force=False, say=lambda _: None)
    return OnnxModel(write_unit_model(full.directory, scratch / "unit"))


def write_unit_model(full: Path, into: Path) -> Path:
    """Writes *into*, a new directory: the model in *full*, its weights in 8 bits by blocks."""
    shutil.copytree(full, into)
    onnx.save_model(quantise(onnx.load_model(full / MODEL)), into / MODEL)
    written = read_manifest(full)
    files = {name: record_of(into / name) for name in written.files}
    manifest = msgspec.structs.replace(written, precision=Precision.INT8, files=files)
    (into / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    return into
