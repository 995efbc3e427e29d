"""What is asked of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from memory_extproc.model import (
    Matrix,
    Vector,
    Words,
)


class Embeds(Protocol):
    """Turns text into vectors. Any text is accepted; what does not fit the model's window is cut."""

    @property
    def fingerprint(self) -> str:
        """Names model and precision; two embedders with one fingerprint give interchangeable vectors."""

    @property
    def dimension(self) -> int: ...

    @property
    def max_tokens(self) -> int:
        """The model's window, special tokens included: what a text has beyond it does not count."""

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """One unit-length row per text, in order; (0, dimension) for no texts. For background work."""

    async def embed_query(self, text: str) -> Vector:
        """As embed, for one query on the read path: batched with its neighbours, cached by text."""


@runtime_checkable
class ReadsWords(Protocol):
    """An embedder that also knows, of texts it embedded lately, the vectors of their single words."""

    @property
    def reads_words(self) -> bool:
        """Whether it ever does."""

    def words(self, texts: Sequence[str]) -> list[Words | None]:
        """Of each of *texts*, if it was embedded lately; costs a look-up. Embedding it makes them known, for a
        while."""

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """As Embeds has it."""


@runtime_checkable
class BeginsQueries(Protocol):
    """An embedder in this process, which shares it with whoever asks."""

    async def begun(self) -> None:
        """Returns once no query that could be begun waits for that: whoever computes before it holds up the query,
        and whoever does so behind it does not."""


class Reranks(Protocol):
    """Reads a query and texts together and says which of them serve it best."""

    async def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """One number in [0, 1] per text, in order, the higher the better; they compare the texts of one call
        and nothing else. Any text is accepted; none gives none. Takes what it takes: the caller has the clock."""


class Completes(Protocol):
    """A language model at an OpenAI-compatible endpoint."""

    async def complete(self, system: str, user: str, *, schema: Mapping[str, Any] | None = None) -> str:
        """The answer's text without reasoning blocks. *schema*: a JSON Schema the answer should follow,
        enforced where the endpoint can; the caller parses strictly all the same."""
