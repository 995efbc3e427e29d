"""Models: in this process by ONNX Runtime, or at OpenAI-compatible endpoints; no PyTorch.

`onnx` runs embedders and cross-encoders that `prepare` wrote (`bert_onnx`, in 8 bits by `quantize`);
`openai_models` asks over `openai_client`. `batching` stands in front of an embedder.
"""

import os

# From 1.29 on, ONNX Runtime sends events about processes and models to Microsoft, and writes an id of the machine
# into the home directory, unless this is set before its import:
# https://github.com/microsoft/onnxruntime/pull/27379
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
