from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable
from itertools import pairwise

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.errors import BadBodyError
from memory_extproc.request import body as bodies
from memory_extproc.request.body import MOST_MEMBERS, OversizeError, Unpacker, is_encoded, unpack
from tests.support.growth import superlinear

Pack = Callable[[bytes], bytes]


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


PACKERS: list[tuple[str, Pack]] = [
    ("identity", bytes),
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", raw_deflate),
    ("br", brotli.compress),
    ("zstd", zstandard.ZstdCompressor().compress),
]
BOMBS: list[tuple[str, Pack]] = [(name, pack) for name, pack in PACKERS if name != "identity"]


@pytest.mark.parametrize(("encoding", "pack"), PACKERS)
@given(body=st.binary(max_size=5000), cuts=st.lists(st.integers(0, 6000), max_size=5))
def test_whatever_the_cuts_the_same_bytes_come_out(encoding: str, pack: Pack, body: bytes, cuts: list[int]) -> None:
    whole = pack(body)
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    unpacker = Unpacker(encoding, 5000)
    got = b"".join(unpacker.feed(whole[start:end]) for start, end in pairwise(edges))
    unpacker.finish()
    assert got == body


@pytest.mark.parametrize(("encoding", "pack"), PACKERS)
def test_the_limit_is_on_what_comes_out_to_the_byte(encoding: str, pack: Pack) -> None:
    body = bytes(range(256)) * 40
    assert unpack(encoding, pack(body), len(body)) == body
    with pytest.raises(OversizeError):
        unpack(encoding, pack(body), len(body) - 1)


@pytest.mark.parametrize(("encoding", "pack"), BOMBS)
def test_a_bomb_never_takes_more_memory_than_a_few_times_the_limit(encoding: str, pack: Pack) -> None:
    bomb = pack(bytes(64 * 1024 * 1024))
    tracemalloc.start()
    with pytest.raises(OversizeError):
        unpack(encoding, bomb, 1024 * 1024)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 1024 * 1024


@pytest.mark.parametrize(("encoding", "pack"), BOMBS)
def test_what_is_cut_off_is_told_apart_from_what_has_ended(encoding: str, pack: Pack) -> None:
    whole = pack(b"some words that are long enough to be packed, some words that are long enough")
    with pytest.raises(BadBodyError):
        unpack(encoding, whole[:-3], 1000)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
def test_what_is_not_packed_as_it_says_is_a_bad_body(encoding: str) -> None:
    with pytest.raises(BadBodyError):
        unpack(encoding, b'{"model": "demo"}', 1000)


@pytest.mark.parametrize("encoding", ["compress", "rot13", "gzip, rot13", "gzip,gzip,gzip,gzip"])
def test_a_coding_that_is_not_known_or_stacked_too_high_is_a_bad_body(encoding: str) -> None:
    with pytest.raises(BadBodyError):
        Unpacker(encoding, 1000)


def test_stacked_codings_are_undone_from_the_last() -> None:
    body = b"words" * 100
    assert unpack("gzip, br", brotli.compress(gzip.compress(body)), 1000) == body


def test_a_small_bomb_inside_a_small_bomb_is_stopped() -> None:
    bomb = gzip.compress(gzip.compress(bytes(50_000_000)))
    with pytest.raises(OversizeError):
        unpack("gzip, gzip", bomb, 100_000)


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("zstd", zstandard.ZstdCompressor().compress)]
)
def test_members_that_follow_one_another_are_one_body(encoding: str, pack: Pack) -> None:
    assert unpack(encoding, pack(b"one ") + pack(b"two"), 100) == b"one two"


def test_bytes_after_the_end_are_a_bad_body() -> None:
    for encoding, pack in (("deflate", zlib.compress), ("br", brotli.compress)):
        with pytest.raises(BadBodyError):
            unpack(encoding, pack(b"words") + b"more", 100)


@pytest.mark.parametrize(("encoding", "expected"), [("", False), ("identity", False), ("gzip", True), ("BR", True)])
def test_what_has_to_be_unpacked(encoding: str, expected: bool) -> None:
    assert is_encoded(encoding) is expected


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
def test_an_empty_body_of_any_encoding_is_empty(encoding: str) -> None:
    assert unpack(encoding, b"", 0) == b""


EMPTY = [("gzip", gzip.compress(b"", mtime=0)), ("zstd", zstandard.ZstdCompressor().compress(b""))]


@pytest.mark.parametrize(("encoding", "member"), EMPTY)
def test_a_body_of_nothing_but_empty_members_is_refused_at_a_bound(encoding: str, member: bytes) -> None:
    assert unpack(encoding, member * MOST_MEMBERS, 100) == b""
    with pytest.raises(BadBodyError):
        unpack(encoding, member * (MOST_MEMBERS + 1), 100)


@pytest.mark.no_cover
@pytest.mark.parametrize(("encoding", "member"), EMPTY)
def test_many_members_cost_in_proportion_to_their_number(
    encoding: str, member: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MOST_MEMBERS", 1_000_000)
    assert not superlinear(lambda text: unpack(encoding, member * (20 * len(text)), 100), "", "x")
