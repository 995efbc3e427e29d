"""Long-term memory for any LLM behind Envoy: an external-processing sidecar."""

from importlib.metadata import version

__version__ = version("memory-extproc")
