"""What the model sees in the conversation already, so that it is not told twice. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from memory_extproc.model import Memory

_SPACED = 2  # times as long as its words a text is looked at, for what white space there may be in it
_MARGIN = 64  # characters more than that


class View:
    """The texts of a conversation: some megabytes of them, so only those that could matter are looked at."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = sorted(texts, key=len)
        self._lengths = [len(text) for text in self._texts]
        self._normal: dict[str, str] = {}
        self._holding: dict[tuple[str, int], str] = {}  # by session and seq: the text that held another piece

    def shows(self, memory: Memory) -> bool:
        """Whether the model sees *memory* as it is: as a message of the conversation, but for case and white
        space; or, where *memory* is a piece of a long message, within one."""
        words = normal(memory.content)
        first = bisect_left(self._lengths, len(words) // 2)  # folding case may lengthen a text
        last = bisect_left(self._lengths, _SPACED * len(words) + _MARGIN)
        if any(self._normal_of(text) == words for text in self._texts[first:last]):
            return True
        return "piece" in memory.metadata and self._holds(memory)

    def _normal_of(self, text: str) -> str:
        known = self._normal.get(text)
        if known is None:
            known = self._normal[text] = normal(text)
        return known

    def _holds(self, piece: Memory) -> bool:
        message = (piece.session, piece.seq)
        if piece.content in self._holding.get(message, ""):
            return True
        for text in self._texts[bisect_left(self._lengths, len(piece.content)) :]:
            if piece.content in text:
                self._holding[message] = text
                return True
        return False


def normal(text: str) -> str:
    """*text* as it is compared."""
    return " ".join(text.casefold().split()).rstrip(".!?… ")
