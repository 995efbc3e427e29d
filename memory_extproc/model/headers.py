"""HTTP headers, and a request's headers with Envoy's attributes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


class Headers:
    """HTTP headers in order; names in lower case, a name may occur more than once. Values are private."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._pairs = tuple((name.lower(), value) for name, value in pairs)

    def get(self, name: str, default: str = "") -> str:
        """The first value of *name* (lower case), or *default*."""
        return next((value for key, value in self._pairs if key == name), default)

    def all(self, name: str) -> tuple[str, ...]:
        return tuple(value for key, value in self._pairs if key == name)

    def __contains__(self, name: object) -> bool:
        return any(key == name for key, _ in self._pairs)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __repr__(self) -> str:
        return f"<headers: {', '.join(sorted({key for key, _ in self._pairs}))}>"


NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RequestHeaders:
    headers: Headers
    last: bool  # no body follows
    metadata: Mapping[str, Any] = field(default_factory=lambda: NOTHING, repr=False)  # Envoy's, by namespace
    attributes: Mapping[str, Any] = field(default_factory=lambda: NOTHING, repr=False)
