"""Records of every kind for tests of the formats."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import strategies as st

from memory_extproc.model import MemoryState, MemoryType, Role, Source
from memory_extproc.portability.records import MemoryRecord

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_names = st.from_regex(r"[A-Za-z0-9_:-][A-Za-z0-9_.:-]{0,63}", fullmatch=True)
_times = st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)).map(  # noqa: DTZ001
    lambda moment: moment.replace(microsecond=0)
)
_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=8,
)


def records() -> st.SearchStrategy[MemoryRecord]:
    """Anything the store may hold."""
    return st.builds(
        MemoryRecord,
        id=_names,
        type=st.sampled_from(MemoryType),
        state=st.sampled_from(MemoryState),
        superseded_by=st.just("") | _names,
        source=st.sampled_from(Source),
        role=st.sampled_from(Role),
        importance=st.integers(0, 1000).map(lambda thousandths: thousandths / 1000),
        created_at=_times,
        updated_at=_times,
        valid_from=st.none() | _times,
        valid_to=st.none() | _times,
        expires_at=st.none() | _times,
        project_id=_texts,
        session_id=_texts,
        seq=st.integers(0, 2**62),
        origin=_texts,
        metadata=st.dictionaries(_texts, _values, max_size=3),
        content=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80),
    )
