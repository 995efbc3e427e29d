"""Models: in this process by ONNX Runtime, or at OpenAI-compatible endpoints; no PyTorch.

`onnx` runs what `prepare` wrote (`bert_onnx`): embedders and cross-encoders; `openai_models` asks over
`openai_client`. `batching` stands in front of an embedder.
"""
