"""Models: in this process by ONNX Runtime, or at OpenAI-compatible endpoints; no PyTorch.

`onnx` runs embedders and cross-encoders that `prepare` wrote (`bert_onnx`, in 8 bits by `quantize`);
`openai_models` asks over `openai_client`. `batching` stands in front of an embedder.
"""
