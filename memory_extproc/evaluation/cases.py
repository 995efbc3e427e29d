"""What a data set says, whatever its format: conversations, notes, and questions with what answers them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from memory_extproc.errors import GiveUpError
from memory_extproc.model import Role


class DatasetError(GiveUpError):
    """A data set that is not what it says it is; names the place, never the words that stand there."""


class Category(StrEnum):
    """Kinds of question: LoCoMo's five, and those of our own sets that it has no name for."""

    MULTI_HOP = "multi-hop"
    TEMPORAL = "temporal"
    OPEN_DOMAIN = "open-domain"
    SINGLE_HOP = "single-hop"
    ADVERSARIAL = "adversarial"
    UNNAMED = ""


# The questions that the figures at the top are about; an adversarial one has no answer to be found.
ANSWERABLE = frozenset({"multi-hop", "temporal", "open-domain", "single-hop"})


@dataclass(frozen=True, slots=True)
class Said:
    """A message: *id* as the data set names it (LoCoMo: the dia_id), *text* as it is to be learned."""

    id: str
    role: Role  # user or assistant
    text: str = field(repr=False)
    session: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Noted:
    """A memory that nobody said: put in as it is. *replaces*: the id of the one it takes the place of."""

    id: str
    text: str = field(repr=False)
    at: datetime
    replaces: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """*relevant*: ids of what answers it; none: nothing does. *earlier*: the user's messages just before."""

    id: str
    text: str = field(repr=False)
    relevant: frozenset[str]
    category: str = ""
    earlier: tuple[str, ...] = field(default=(), repr=False)

    @property
    def counts(self) -> bool:
        """Whether recall is measured by it: it has evidence, and is not of a kind that has no answer."""
        return bool(self.relevant) and self.category != Category.ADVERSARIAL


@dataclass(frozen=True, slots=True)
class Conversation:
    """One owner's memories and the questions about them. *said* is in the order of time."""

    name: str
    said: tuple[Said, ...]
    questions: tuple[Question, ...]
    noted: tuple[Noted, ...] = ()
    speakers: tuple[str, ...] = ()  # names that stand before the messages, if any do
    skipped: int = 0  # pieces of evidence that name nothing there is

    @property
    def ids(self) -> list[str]:
        """Of all that is to be remembered."""
        return [*(one.id for one in self.said), *(one.id for one in self.noted)]

    @property
    def ends(self) -> datetime:
        """When the last of it was said."""
        return max([*(one.at for one in self.said), *(one.at for one in self.noted)])


@dataclass(frozen=True, slots=True)
class Dataset:
    name: str
    conversations: tuple[Conversation, ...]

    @property
    def questions(self) -> int:
        return sum(len(one.questions) for one in self.conversations)


def check(conversations: Sequence[Conversation], where: str) -> None:
    """DatasetError where there is nothing to measure, or one name stands for two things."""
    if not conversations:
        raise DatasetError(f"{where}: holds no conversation")
    names: set[str] = set()
    for one in conversations:
        if one.name in names:
            raise DatasetError(f"{where}: there are two conversations named {one.name!r}")
        names.add(one.name)
        ids = one.ids
        if twice := [id_ for id_, count in Counter(ids).items() if count > 1]:
            raise DatasetError(f"{where}: {one.name}: the id {twice[0]!r} stands for two memories")
        if not ids:
            raise DatasetError(f"{where}: {one.name}: holds nothing to remember")
    if not any(one.questions for one in conversations):
        raise DatasetError(f"{where}: asks no question")
