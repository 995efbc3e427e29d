"""Short names of the tensors of a BERT layer, as scripts/train writes them, and the names in the base's file.

They stand apart from encoder.py so that export.py runs without PyTorch.
"""

from __future__ import annotations

LINEAR = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "o": "attention.output.dense",
    "f": "intermediate.dense",
    "g": "output.dense",
}
NORMS = {"n1": "attention.output.LayerNorm", "n2": "output.LayerNorm"}
