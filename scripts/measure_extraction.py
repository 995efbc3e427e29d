"""Say how many of the facts that a careful reader notes the rules learn from natural dialogues, and how many of
theirs are right.

    python scripts/measure_extraction.py            # the half for fitting, with every miss and every wrong fact
    python scripts/measure_extraction.py --held     # the half that nothing is fitted on: figures alone
    python scripts/measure_extraction.py --values   # values in single messages (with --held, too), by sort

`tests/quality/dialogues.jsonl` has a message of a user a line, by dialogue, with the facts it states as subject,
attribute and value; "a|b" stands for either. A fourth string is needed as well, for what is no longer so. A
learned fact is one of them when it holds the value, and the subject where that is not the user; the attribute is
for people. Facts that are right but not worth noting stand under "fine": they count neither as missed nor as
wrong.

`tests/quality/values.tsv` has single messages in which readers marked what the user says of himself: "stuck in
[home Denver]". Their wordings vary as far as possible, and many name no attribute, so it is a hard set. A value is
learned when a fact holds it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

from memory_extproc.learn.conflicts import Discard, reconcile_fact
from memory_extproc.learn.extract.extractor import Fact, FactExtractor
from memory_extproc.learn.extract.rules import RulesExtractor
from memory_extproc.learn.reconcile import row_of
from memory_extproc.model import Hit, Owner, Turn, digest

SET = Path(__file__).resolve().parents[1] / "tests" / "quality" / "dialogues.jsonl"
VALUES = SET.with_name("values.tsv")
_MARKED = re.compile(r"\[([a-z]+) ([^\]]+)\]")
BEGIN = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
OWNER = Owner("", "reader")
WHOLE = 3  # letters of a word that counts as a whole word alone


@dataclass(slots=True)
class Measured:
    turns: int = 0
    noted: int = 0
    found: int = 0  # of the noted
    right: int = 0  # of the learned
    missed: list[tuple[str, list[str]]] = field(default_factory=list)
    wrong: list[tuple[str, str]] = field(default_factory=list)

    @property
    def precision(self) -> float:
        judged = self.right + len(self.wrong)
        return self.right / judged if judged else 1.0

    @property
    def recall(self) -> float:
        return self.found / self.noted


def read_dialogues(*, held: bool, path: Path = SET) -> list[list[dict[str, Any]]]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    kept = [line for line in lines if line["held"] is held]
    return [list(turns) for _, turns in groupby(kept, key=lambda line: line["dialogue"])]


async def measure(extractor: FactExtractor, dialogues: Sequence[Sequence[dict[str, Any]]]) -> Measured:
    """*extractor* on each dialogue, turn by turn, with the turns before it. Facts that the reconciler discards were
    not learned."""
    measured = Measured()
    for dialogue in dialogues:
        turns = list(_turns(dialogue))
        there: list[Hit] = []
        for at, (line, turn) in enumerate(zip(dialogue, turns, strict=True)):
            facts = []
            for fact in await extractor.extract([turn], earlier=turns[:at]):
                row = row_of(fact, turn, len(facts), "")
                if not isinstance(reconcile_fact(fact, row, there), Discard):
                    facts.append(fact)
                    there.append(Hit(row, 1.0))
            _count(measured, line, facts)
    return measured


async def measure_values(extractor: FactExtractor, *, held: bool) -> tuple[Counter[str], Counter[str]]:
    """Count the marked values of a half, and those of them that a fact holds, by sort."""
    marked, learned = Counter[str](), Counter[str]()
    half = "held" if held else "dev"
    for line in VALUES.read_text(encoding="utf-8").splitlines():
        of, _, text = line.partition("\t")
        if of == half:
            dialogue = [{"dialogue": text, "user": _MARKED.sub(r"\2", text)}]
            facts = await extractor.extract(list(_turns(dialogue)))
            said = " ".join(fact.content for fact in facts).casefold()
            for sort, value in _MARKED.findall(text):
                marked[sort] += 1
                learned[sort] += value.casefold() in said
    return marked, learned


def _turns(dialogue: Sequence[dict[str, Any]]) -> Iterator[Turn]:
    for at, line in enumerate(dialogue):
        # The turn before a message holds the assistant's question.
        answered = dialogue[at + 1].get("before", "All right.") if at + 1 < len(dialogue) else "All right."
        yield Turn(
            id=digest("turn", line["dialogue"], str(at)),
            owner=OWNER,
            project="",
            session=line["dialogue"],
            seq=2 * at,
            asked=line["user"],
            answered=answered,
            at=BEGIN + timedelta(minutes=at),
        )


def _count(measured: Measured, line: dict[str, Any], facts: Sequence[Fact]) -> None:
    noted = line["facts"]
    measured.turns += 1
    measured.noted += len(noted)
    for one in noted:
        if any(_states(fact, one) for fact in facts):
            measured.found += 1
        else:
            measured.missed.append((line["user"], one))
    for fact in facts:
        if any(_states(fact, one) for one in noted):
            measured.right += 1
        elif not any(_states(fact, one) for one in line.get("fine", ())):
            measured.wrong.append((line["user"], fact.content))


def _states(fact: Fact, noted: Sequence[str]) -> bool:
    subject, _attribute, *words = noted
    said = f"{fact.subject} {fact.content}".casefold()
    about = subject.startswith("user") or _holds(said, subject)
    return about and all(_holds(said, way) for way in words)


def _holds(said: str, way: str) -> bool:
    """At the beginning of a word; short ones as whole words."""
    words = [re.escape(word) + (r"\b" if len(word) <= WHOLE else "") for word in way.casefold().split("|")]
    return re.search(rf"(?<!\w)(?:{'|'.join(words)})", said) is not None


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--held", action="store_true", help="the half that nothing is fitted on")
    arguments.add_argument("--values", action="store_true", help="of single messages instead of dialogues")
    given = arguments.parse_args()
    if given.values:
        marked, learned = asyncio.run(measure_values(RulesExtractor(), held=given.held))
        for sort, count in marked.most_common():
            print(f"{sort}: {learned[sort]} of {count}")
        print(f"{marked.total()} values, {learned.total()} of them learned: {learned.total() / marked.total():.3f}")
        return
    measured = asyncio.run(measure(RulesExtractor(), read_dialogues(held=given.held)))
    if not given.held:
        for text, one in measured.missed:
            print(f"missed  {', '.join(one)}  <  {text}")
        for text, content in measured.wrong:
            print(f"wrong   {content}  <  {text}")
    print(
        f"{measured.turns} turns, {measured.noted} facts noted, {measured.found} of them learned, "
        f"{len(measured.wrong)} wrong: precision {measured.precision:.3f}, recall {measured.recall:.3f}"
    )


if __name__ == "__main__":
    main()
