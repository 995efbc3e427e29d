"""Models: in this process by ONNX Runtime, or at OpenAI-compatible endpoints; no PyTorch.

`onnx` runs what `prepare` wrote, embedders and cross-encoders (`bert_onnx`); `openai_models` asks over `openai_client`.
`batching` stands in front of an embedder.
"""
