"""pymilvus, imported without its side effects: no `.env` read, nothing printed, no pandas loaded.

Only this module imports it, so that every other finds it already tamed."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from memory_extproc.store.milvus.options import MilvusOptions


@contextmanager
def _without_dotenv() -> Iterator[None]:
    """Importing pymilvus calls load_dotenv(), which would load any `.env` it finds into our environment;
    python-dotenv skips that while this variable is set."""
    name = "PYTHON_DOTENV_DISABLED"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


_TYPES = "pandas.api.types"
_QUESTIONS = ("infer_dtype", "is_array_like", "is_float", "is_list_like", "is_scalar")


class _KindOfFrame(type):
    """Without pandas nothing is a data frame."""

    def __instancecheck__(cls, instance: object) -> bool:
        pandas = sys.modules.get("pandas")
        return pandas is not None and isinstance(instance, pandas.DataFrame)


class _DataFrame(metaclass=_KindOfFrame):
    """Stands for pandas.DataFrame in annotations and isinstance checks."""


def _asked_later(question: str) -> Callable[..., Any]:
    def ask(*args: Any, **named: Any) -> Any:
        return getattr(importlib.import_module(_TYPES), question)(*args, **named)

    return ask


@contextmanager
def pandas_later() -> Iterator[None]:
    """Imports of pandas inside get a stand-in; later imports get pandas itself. No effect if pandas is loaded
    already."""
    if "pandas" in sys.modules:
        yield
        return
    modules = {name: ModuleType(name) for name in ("pandas", "pandas.api", _TYPES)}
    vars(modules["pandas"])["DataFrame"] = _DataFrame
    vars(modules[_TYPES]).update({question: _asked_later(question) for question in _QUESTIONS})
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]


with _without_dotenv(), pandas_later():
    from pymilvus import AsyncMilvusClient, CollectionSchema, DataType, Function, FunctionType, MilvusException

# It logs every failed call with its traceback, and with it the filter that names the caller.
logging.getLogger("pymilvus").setLevel(logging.CRITICAL + 1)

_NEVER = 2**31 - 1  # milliseconds; gRPC's own word for it


def connect(options: MilvusOptions, uri: str) -> AsyncMilvusClient:
    """A client with a channel of its own; it connects with its first call, on the running loop."""
    section, tls = options.section, options.section.tls
    secure = {
        "secure": tls.enabled or uri.startswith("https://"),
        "ca_pem_path": tls.ca,
        "client_pem_path": tls.cert,
        "client_key_path": tls.key,
        "server_name": tls.server_name,
        # With a CA alone (no certificate of ours) pymilvus looks for it under this name.
        "server_pem_path": "" if tls.cert else tls.ca,
    }
    return AsyncMilvusClient(
        uri,
        user=section.user,
        password=section.password.get_secret_value(),
        token=section.token.get_secret_value(),
        db_name=section.database,
        timeout=section.timeout.total_seconds(),
        dedicated=True,
        grpc_options=channel_options(uri),
        **{name: value for name, value in secure.items() if value},
    )


def channel_options(uri: str) -> Mapping[str, int]:
    """Options of gRPC beyond pymilvus' own. It pings idle channels every ten seconds, which a Milvus server allows;
    the in-process server of a Lite file would close the connection ("too_many_pings"), with all calls in progress.
    """
    if not uri.startswith("unix:"):
        return {}
    return {"grpc.keepalive_time_ms": _NEVER, "grpc.keepalive_permit_without_calls": 0}
