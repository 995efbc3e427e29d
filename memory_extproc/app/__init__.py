"""The composition root: the one package that knows which adapter stands behind which port."""

from memory_extproc.app.coordinating import open_link
from memory_extproc.app.holding import LOCK, hold_data_directory, hold_lite
from memory_extproc.app.learning import make_extraction
from memory_extproc.app.models import open_embedder, open_reranks
from memory_extproc.app.options import milvus_options, partition_limits, piece_limits, wire_options
from memory_extproc.app.recalling import make_recaller
from memory_extproc.app.reloading import Source
from memory_extproc.app.sealing import keys_alone, open_keys, sealed_store
from memory_extproc.app.sidecar import Sidecar, sidecar, utc_now

__all__ = [
    "LOCK",
    "Sidecar",
    "Source",
    "hold_data_directory",
    "hold_lite",
    "keys_alone",
    "make_extraction",
    "make_recaller",
    "milvus_options",
    "open_embedder",
    "open_keys",
    "open_link",
    "open_reranks",
    "partition_limits",
    "piece_limits",
    "sealed_store",
    "sidecar",
    "utc_now",
    "wire_options",
]
