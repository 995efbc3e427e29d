"""A file into a data set: LoCoMo's JSON or our JSON lines, told apart by what the file holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from memory_extproc.evaluation import lines, locomo
from memory_extproc.evaluation.cases import Dataset, DatasetError, check

LARGEST = 1 << 30  # bytes; LoCoMo whole has 3 MB


def read_datasets(paths: Sequence[Path]) -> Dataset:
    """Several sets as one; where names of conversations meet, the file's stands before them."""
    read = [read_dataset(path) for path in paths]
    taken = Counter(one.name for dataset in read for one in dataset.conversations)
    found = tuple(
        replace(one, name=f"{dataset.name}:{one.name}") if taken[one.name] > 1 else one
        for dataset in read
        for one in dataset.conversations
    )
    name = ", ".join(dataset.name for dataset in read)
    check(found, name)
    return Dataset(name, found)


def read_dataset(path: Path) -> Dataset:
    """DatasetError for what cannot be read or is neither format; it names the place within the file."""
    try:
        if path.stat().st_size > LARGEST:
            raise DatasetError(f"{path}: is larger than {LARGEST >> 30} GiB")
        raw = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror}") from error
    beginning = raw.lstrip()[:1]
    if not beginning:
        raise DatasetError(f"{path}: is empty")
    if beginning == b"[":
        try:
            parsed = msgspec.json.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise DatasetError(f"{path}: is not JSON: {error}") from error
        found = list(locomo.conversations(parsed, path.name))
    elif beginning == b"{":
        found = lines.conversations(raw.splitlines(), path.name)
    else:
        raise DatasetError(
            f"{path}: is neither LoCoMo's format (a JSON list of samples) nor JSON lines (an object a line)"
        )
    check(found, path.name)
    return Dataset(path.name, tuple(found))
