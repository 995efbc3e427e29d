"""Vectors of words in four bits a number: as near to what the model gave as matching needs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.index.entries import cosines, pack, together, unpack

SEEDS = st.integers(0, 2**32 - 1)
Singles = npt.NDArray[np.float32]


def some_vectors(seed: int, pieces: int, dimension: int = 384) -> Singles:
    return np.random.default_rng(seed).normal(size=(pieces, dimension)).astype(np.float32)


def unit(vectors: Singles) -> Singles:
    found: Singles = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return found


@given(SEEDS, st.floats(1e-3, 1e3))
def test_four_bits_keep_a_words_direction_whatever_its_length(seed: int, length: float) -> None:
    vectors = some_vectors(seed, 5)
    kept = unpack(pack(vectors * np.float32(length)))
    assert np.allclose(np.linalg.norm(kept, axis=1), 1.0, atol=1e-5)
    assert (np.einsum("ij,ij->i", kept, unit(vectors)) > 0.97).all()


@given(SEEDS, st.integers(1, 9), st.integers(1, 5), st.sampled_from([1, 2, 7, 384]))
def test_what_is_matched_packed_is_what_would_be_matched_unpacked(
    seed: int, pieces: int, asked: int, dimension: int
) -> None:
    there, query = pack(some_vectors(seed, pieces, dimension)), pack(some_vectors(seed + 1, asked, dimension))
    assert np.allclose(cosines(there, unpack(query)), unpack(there) @ unpack(query).T, atol=1e-4)


def test_four_bits_take_half_a_byte_a_number() -> None:
    assert pack(some_vectors(1, 10)).size == 10 * (384 // 2 + 4)


def test_pieces_of_several_texts_stand_one_after_the_other() -> None:
    one, other = pack(some_vectors(1, 2)), pack(some_vectors(2, 3))
    assert np.array_equal(unpack(together([one, other])), np.concatenate([unpack(one), unpack(other)]))


def test_a_vector_of_zeros_is_near_to_nothing() -> None:
    nothing = pack(np.zeros((1, 8), dtype=np.float32))
    assert np.array_equal(cosines(nothing, some_vectors(1, 3, 8)), np.zeros((1, 3), dtype=np.float32))
