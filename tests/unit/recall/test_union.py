from __future__ import annotations

from memory_extproc.model import Candidate
from memory_extproc.recall.query import merge_rankings
from tests.support.builders import a_memory

TEA, DOG, CAT = a_memory("User likes tea"), a_memory("User has a dog"), a_memory("User has a cat")


def test_a_ranking_of_several_queries_takes_each_memory_where_it_is_most_relevant() -> None:
    first = [Candidate(TEA, 3.0, 0.7, {"dense": 0.4}), Candidate(DOG, 2.0, 0.2)]
    second = [Candidate(DOG, 9.0, 0.9), Candidate(CAT, 8.0, 0.7), Candidate(TEA, 7.0, 0.6)]
    assert merge_rankings([first, second]) == [second[0], second[1], first[0]]
    assert merge_rankings([second, first]) == merge_rankings([first, second])
    assert merge_rankings([first]) == first
    assert merge_rankings([[], []]) == []
