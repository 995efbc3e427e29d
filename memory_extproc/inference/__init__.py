"""Models: in this process by ONNX Runtime, or at OpenAI-compatible endpoints; no PyTorch.

`onnx` and `cross_encoder` run what `prepare` wrote (`bert_onnx`); `openai_models` asks over `openai_client`.
`batching` stands in front of an embedder.
"""
