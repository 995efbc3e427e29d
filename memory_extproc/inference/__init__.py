"""Models: in this process by ONNX Runtime, or at OpenAI-compatible endpoints; no PyTorch.

`onnx_embedder` and `cross_encoder` run what `prepare` wrote (`bert_graph`, `pooling`, `scoring_head`,
`quantise`); `openai_embedder` and `completions` ask over `openai_endpoint`. `batching_embedder` stands in
front of an embedder; `canned` holds the stand-ins.
"""
