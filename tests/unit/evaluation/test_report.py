"""The report is one page that needs nothing else, whatever was measured."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from memory_extproc.errors import PermanentError
from memory_extproc.evaluation.report import PlotLine, bars, lines, page, steps, write_report

SHARES = {"recall@5": 0.5, "recall@10": 0.75, "recall@20": 1.0, "ndcg@10": 0.6, "mrr": 0.4}


def some_figures(**changes: Any) -> dict[str, Any]:
    return {
        **SHARES,
        "dataset": "<b>set</b>.json",
        "system": "hybrid",
        "embedding_model": "canned/64",
        "questions": 4,
        "by_category": {"single-hop": {**SHARES, "questions": 3}, "temporal": {**SHARES, "questions": 1}},
        "abstention": {"share": 0.9, "questions": 10, "threshold": 0.6, "by_names": {}},
        "injection": {"threshold": 0.6, "limit": 5, "recall": 0.4, "loss": 0.1, "precision": 0.3, "memories": 2.0},
        "learned": {"conversations": 1, "memories": 6},
        "paths": {"hybrid": 1.0},
        "latency_ms": {"embed": {"p50": 1.5, "p95": 3.0}, "total": {"p50": 2.5, "p95": 4.0}},
        "sweep": [
            {"threshold": at / 4, "recall": 1 - at / 4, "precision": at / 8, "abstention": at / 4, "memories": 5.0}
            for at in range(5)
        ],
        **changes,
    }


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for name, value in attrs if name in {"src", "href"}]
        if tag not in {"meta", "line", "circle", "rect", "path", "polyline"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag


def test_the_page_loads_nothing_and_closes_what_it_opens() -> None:
    written = page(some_figures())
    tags = Tags()
    tags.feed(written)
    assert tags.loads == []
    assert tags.open == []
    assert written.count("<svg") == 4


def test_what_the_data_set_is_called_cannot_become_markup() -> None:
    assert "<b>set</b>" not in page(some_figures())
    assert "&lt;b&gt;set&lt;/b&gt;.json" in page(some_figures())


def test_what_was_not_measured_is_a_dash() -> None:
    nothing = dict.fromkeys(SHARES)
    bare = some_figures(
        **nothing,
        by_category={},
        latency_ms={},
        abstention={"share": None, "questions": 0, "threshold": 0.6, "by_names": {}},
        sweep=[{"threshold": 0.5, "recall": None, "precision": None, "abstention": None, "memories": None}],
    )
    assert "<b>-</b>recall@5" in page(bare)


def test_an_ablation_is_shown_where_there_is_one() -> None:
    assert "What each feature is worth" not in page(some_figures())
    assert "<td>dense</td>" in page(some_figures(ablation=[{"left out": "dense", "recall@5": -0.1}]))


def test_the_figures_lie_beside_the_page(tmp_path: Path) -> None:
    write_report(tmp_path / "new" / "report", some_figures())
    assert json.loads((tmp_path / "new/report/figures.json").read_text())["mrr"] == 0.4
    assert (tmp_path / "new/report/index.html").read_text().startswith("<!doctype html>")


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PermanentError, match="the report cannot be written"):
        write_report(tmp_path / "file", some_figures())


def test_points_stand_where_their_figures_say() -> None:
    drawn = lines([PlotLine("one", [(0.0, 0.0), (1.0, 0.5)], {1: "end"})], "across", "up", most=0.5)
    ET.fromstring(drawn)  # noqa: S314 - our own
    (points,) = re.findall(r'points="([^"]+)"', drawn)
    (left, bottom), (right, top) = (tuple(map(float, pair.split(","))) for pair in points.split())
    assert (left, bottom) == (52.0, 256.0)
    assert (right, top) == (544.0, 16.0)
    assert ">end</text>" in drawn


def test_bars_are_as_high_as_their_figures_and_absent_without_one() -> None:
    drawn = bars({"a": [10.0, None], "b": [5.0, 0.0]}, ("p50", "p95"), "ms", most=10.0)
    ET.fromstring(drawn)  # noqa: S314 - our own
    heights = [
        float(found) for found in re.findall(r'height="([\d.]+)" fill="#[^"]+"/><text[^>]*class="small"', drawn)
    ]
    assert heights == [240.0, 120.0, 0.0]


@pytest.mark.parametrize(
    ("last", "step"), [(0.003, 0.005), (0.9, 1.0), (1.0, 1.0), (1.1, 2.0), (4.9, 5.0), (70, 100)]
)
def test_a_scale_ends_at_a_round_number(last: float, step: float) -> None:
    assert steps(last) == pytest.approx(step)
