"""pandas for who imports it and hardly ever needs it: loaded when it is first used.

pymilvus imports it for data frames, and pyarrow for its conversions; nobody here makes any. It takes a quarter of a
second and 40 MiB.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

_TYPES = "pandas.api.types"
_QUESTIONS = ("infer_dtype", "is_array_like", "is_float", "is_list_like", "is_scalar")


class _KindOfFrame(type):
    """Without pandas nothing is a data frame."""

    def __instancecheck__(cls, instance: object) -> bool:
        pandas = sys.modules.get("pandas")
        return pandas is not None and isinstance(instance, pandas.DataFrame)


class _DataFrame(metaclass=_KindOfFrame):
    """Stands for pandas.DataFrame in annotations and where it is asked whether something is one."""


def _asked_later(question: str) -> Callable[..., Any]:
    def ask(*args: Any, **named: Any) -> Any:
        return getattr(importlib.import_module(_TYPES), question)(*args, **named)

    return ask


@contextmanager
def pandas_later() -> Iterator[None]:
    """What imports pandas inside gets something that stands for it; what does so afterwards, pandas itself. Where
    it is loaded already nothing changes."""
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


class _Absent(MetaPathFinder):
    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def arrow_without_pandas() -> None:
    """Pyarrow looks once whether there is pandas, with the first array that it makes, and loads it then. What it is
    asked to convert to pandas later it converts all the same."""
    if "pandas" in sys.modules:
        return
    absent = _Absent()
    sys.meta_path.insert(0, absent)
    try:
        importlib.import_module("pyarrow").array([0])
    finally:
        sys.meta_path.remove(absent)
