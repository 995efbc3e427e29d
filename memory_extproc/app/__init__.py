"""The composition root: the only package that constructs adapters."""

from memory_extproc.app.context import milvus_options, partition_limits, piece_limits
from memory_extproc.app.coordination import open_link
from memory_extproc.app.models import open_embedder, open_reranks
from memory_extproc.app.read_path import make_recaller
from memory_extproc.app.sidecar import ConfigurationSource, Sidecar, sidecar
from memory_extproc.app.storage import LOCK, hold_data_directory, hold_lite, keys_alone, open_keys, sealed_store
from memory_extproc.app.write_path import make_extraction
