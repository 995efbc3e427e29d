"""Unit tests use no network: a socket that binds or connects fails the test that did it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


class Guard:
    """Asked by an audit hook, which cannot be taken out again; so it can be switched."""

    def __init__(self) -> None:
        self.closed = False

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.closed and event in {"socket.connect", "socket.bind", "socket.getaddrinfo"}:
            raise AssertionError(f"a unit test used the network: {event} {arguments[1:]!r}")


GUARD = Guard()
sys.addaudithook(GUARD)


@pytest.fixture(autouse=True)
def _no_network() -> Iterator[None]:
    GUARD.closed = True
    yield
    GUARD.closed = False
