"""Conversations over time with their summaries, and a picture of subjects and their facts."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.api.service import MemoryService
from memory_extproc.console.pages import FACTS, Pages, PageVisit, capitalize_as, shown_memory, subject_words
from memory_extproc.console.sessions import PATH
from memory_extproc.model import Source

_MESSAGES = 100
_SUBJECTS, _LINKS = 12, 8  # in the picture; links of each subject
_ROW, _WIDE, _SHORT = 26, 520, 38  # points, points, characters


class TimelinePage:
    def __init__(self, pages: Pages, service: MemoryService) -> None:
        self._pages, self._service = pages, service

    def register(self, application: web.Application) -> None:
        application.router.add_get(f"{PATH}/timeline", self._pages.for_reader(self._show))

    async def _show(self, visit: PageVisit) -> web.StreamResponse:
        page = visit.request.query.get("page", "")
        asked = pb.ListMemoriesRequest(
            source=[Source.VERBATIM, Source.QUESTION, Source.SUMMARY], limit=_MESSAGES, page_token=page
        )
        said: Any = await self._service.call("ListMemories", asked, visit.presented)
        picture = None
        if not page:
            facts: Any = await self._service.call(
                "ListMemories", pb.ListMemoriesRequest(type=FACTS, limit=_MESSAGES), visit.presented
            )
            picture = draw(facts.memories)
        days = groupby(_conversations(said.memories), lambda one: one["day"])
        return self._pages.render(
            "timeline.html",
            visit.principal,
            days=[(day, list(each)) for day, each in days],
            picture=picture,
            following=urlencode({"page": said.next_page_token}) if said.next_page_token else "",
        )


def _conversations(memories: Iterable[Any]) -> list[dict[str, Any]]:
    """Group *memories*, the newest first, by conversation; each stands at the day of its newest message."""
    found: dict[str, dict[str, Any]] = {}
    for memory in memories:
        shown = shown_memory(memory)
        one = found.setdefault(
            memory.session_id or memory.id,
            {"session": memory.session_id, "day": shown["created"][:10], "until": shown["created"][11:],
             "summaries": [], "messages": 0, "first": None},
        )  # fmt: skip
        if memory.source == Source.SUMMARY:
            one["summaries"].append(shown)
            continue
        one["messages"] += 1
        if one["first"] is None or (memory.session_id and memory.seq <= int(one["first"]["seq"])):
            one["first"] = shown
    return list(found.values())


def draw(memories: Iterable[Any]) -> dict[str, Any] | None:
    """Lay out subjects and their facts for an SVG. None if no fact has a subject."""
    links: dict[str, dict[tuple[str, str], Any]] = {}
    for memory in memories:
        fields = dict(memory.metadata.items())
        subject, attribute, value = (fields.get(name, "") for name in ("subject", "attribute", "value"))
        if all(isinstance(one, str) for one in (subject, attribute, value)) and subject and value:
            links.setdefault(subject, {}).setdefault((attribute, value), memory)
    subjects, lines, row = [], [], 0
    for subject, known in sorted(links.items(), key=lambda one: -len(one[1]))[:_SUBJECTS]:
        first = row
        for (attribute, value), memory in list(known.items())[:_LINKS]:
            named = capitalize_as(memory.content, attribute.replace("_", " ").replace(value.lower(), value))
            words = named if value in named else f"{named}: {value}" if named else value
            lines.append({"y": _middle(row), "words": _shorten(words), "id": memory.id, "whole": words})
            row += 1
        at = (_middle(first) + _middle(row - 1)) / 2
        content = next(iter(known.values())).content
        subjects.append({"y": at, "words": _shorten(subject_words(subject, content))})
        for line in lines[first:row]:
            line["from"] = at
    return {"subjects": subjects, "lines": lines, "wide": _WIDE, "high": row * _ROW + 8} if lines else None


def _middle(row: int) -> float:
    return (row + 0.5) * _ROW + 4


def _shorten(words: str) -> str:
    return words if len(words) <= _SHORT else f"{words[: _SHORT - 1]}…"
