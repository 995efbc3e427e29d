"""pandas is not loaded for pymilvus, and is there for whoever uses it."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Each in a process of its own: what is loaded in this one says nothing.
LOADED = "assert 'pandas' not in sys.modules, 'pandas is loaded'"


def run(*lines: str) -> None:
    subprocess.run([sys.executable, "-c", "\n".join(("import sys", *lines))], check=True, timeout=60)


def test_pymilvus_is_imported_without_pandas() -> None:
    run("import memory_extproc.store.milvus.client", LOADED)


@pytest.mark.parametrize("loaded_before", [True, False])
def test_who_uses_pandas_gets_pandas(*, loaded_before: bool) -> None:
    run(
        "import pandas" if loaded_before else "",
        "from memory_extproc.store.milvus.client import pandas_later",
        "with pandas_later():",
        "    import pandas as pd",
        "    from pandas.api.types import is_list_like",
        "assert not isinstance([1], pd.DataFrame)",
        "" if loaded_before else LOADED,
        "assert is_list_like([1]) and not is_list_like(1)",
        "import pandas",
        "assert isinstance(pandas.DataFrame({'a': [1]}), pd.DataFrame)",
    )


def test_arrow_is_used_without_pandas_and_converts_to_it_all_the_same() -> None:
    run(
        "from memory_extproc.store.milvus.lite import arrow_without_pandas",
        "arrow_without_pandas()",
        "import pyarrow, pyarrow.dataset",
        "table = pyarrow.table({'a': pyarrow.array([1, 2])})",
        LOADED,
        "assert table.to_pandas()['a'].sum() == 3",
        "import pandas",
    )
