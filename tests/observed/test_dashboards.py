"""Every panel of every dashboard shows something, and what it shows exists."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from memory_extproc import __version__
from tests.support.chart import CHART, ROOT
from tests.support.envoy import a_chat
from tests.support.prometheus import scraping
from tests.support.upstream import ANSWER, an_answer
from tests.support.waiting import until
from tests.support.whole import WholeStand

BOARDS = sorted((CHART / "dashboards").glob("*.json"))
_CHOSEN = {"$__rate_interval": "20s", "$job": "memory", "$envoy": "envoy", "$cluster": ".+"} | dict.fromkeys(
    ("$namespace", "$pod", "$tenant"), ".*"
)
Tree = dict[str, Any]


def panels(board: Path) -> Iterator[Tree]:
    tree = json.loads(board.read_text())
    for each in tree["panels"]:
        yield from ([each] if each["type"] != "row" else each.get("panels", []))


def expressions(panel: Tree) -> list[str]:
    found = []
    for target in panel["targets"]:
        expression = target["expr"]
        for name, value in _CHOSEN.items():
            expression = expression.replace(name, value)
        found.append(expression)
    return found


def by_name(path: Path) -> str:
    return path.stem


def test_there_is_a_board_for_each_of_those_who_look() -> None:
    assert [each.stem for each in BOARDS] == ["envoy", "learning", "overview", "store"]


def test_the_boards_are_those_that_the_code_writes() -> None:
    command = [sys.executable, "-m", "scripts.dashboards", "--check"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("board", BOARDS, ids=by_name)
def test_every_panel_says_what_it_shows_and_in_which_unit(board: Path) -> None:
    for panel in panels(board):
        assert len(panel["description"]) > 15, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]


@pytest.mark.parametrize("board", BOARDS, ids=by_name)
def test_every_expression_parses_and_uses_no_variable_that_is_not_declared(board: Path) -> None:
    declared = {each["name"] for each in json.loads(board.read_text())["templating"]["list"]}
    for panel in panels(board):
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= declared, panel["title"]
        for expression in expressions(panel):
            promql_parser.parse(expression)


@pytest.mark.parametrize("board", BOARDS, ids=by_name)
def test_boards_keep_grafanas_own_practice(board: Path) -> None:
    tree = json.loads(board.read_text())
    assert tree["graphTooltip"] == 1, "a crosshair that all panels share"
    assert {"namespace", "pod", "tenant", "job"} <= {each["name"] for each in tree["templating"]["list"]}
    assert {each["name"] for each in tree["annotations"]["list"]} >= {"Starts", "Reloads"}
    for each in tree["annotations"]["list"]:
        expression = each["expr"]
        for name, value in _CHOSEN.items():
            expression = expression.replace(name, value)
        promql_parser.parse(expression)
    rows = [each for each in tree["panels"] if each["type"] == "row"]
    assert [each["collapsed"] for each in rows] == [False, *(True for _ in rows[1:])]
    for panel in panels(board):
        assert panel["type"] in {"stat", "timeseries", "heatmap"}
        assert panel["fieldConfig"]["defaults"]["unit"] not in {"none", ""}, panel["title"]
        if panel["type"] == "timeseries":
            assert panel["options"]["legend"]["calcs"] == ["mean", "max", "lastNotNull"]
        for target in panel["targets"]:
            assert target["legendFormat"] not in {"none", "None"}
            assert panel["type"] != "heatmap" or target["format"] == "heatmap"
    drawn = [each["gridPos"] for each in panels(board)]
    for row in [
        [each for each in tree["panels"] if each["type"] != "row"],
        *(each.get("panels", []) for each in rows),
    ]:
        places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in row]
        assert len(places) == len(set(places)), "two panels in one place"
    assert drawn


TOLD = (
    "My name is Carol and I live in Lisbon.",
    "I'm working on a TensorFlow project that classifies images of plants.",
    "How can I optimize the TensorFlow project? It classifies images of plants too slowly.",
    "What should I order for breakfast at Waffle House tonight?",
    "Are the Waffle House hash browns any good with cheese?",
    "Does Waffle House serve breakfast at night, with coffee?",
)


async def converses(whole: WholeStand, number: int) -> None:
    """A long session of Carol's about two subjects; in the second it is known who she is."""
    items: list[Tree] = []
    for asked in TOLD:
        items.append({"role": "user", "content": f"{asked} That is session number {number}."})
        last = {"x_memory_session": "end"} if asked == TOLD[-1] else {}
        sent = {"model": "demo", "messages": items}
        assert (await whole.chat(sent, user="carol", x_session_id=f"s{number}", **last)).status == 200
        items.append({"role": "assistant", "content": "I see, that is good to know. " * 8})
    await until(lambda: whole.sample("summaries_total", of="session", by="sentences") > number, "summed up", 10)


# What conversations and time bring about: with the settings below there is something in each.
ROWS = ("What conversations were about", "What becomes of it with time")
SLOWLY = {
    "inject": {"profile": "always", "profile_importance": 0.1},
    "compress": {"enabled": True, "above_tokens": 256, "keep_turns": 1},
    "retention": {"every": "1s", "protect": "0s", "ttl": {"episodic": "1s"}},
}


def without_zero(expression: str) -> str:
    return re.sub(r"^\((.*?)\) or (vector\(0\)|\(label_replace\(.*)$", r"\1", expression)


async def test_topics_profiles_long_chats_and_retention_show_in_their_panels(
    whole: WholeStand, tmp_path: Path
) -> None:
    whole.changes |= SLOWLY
    await whole.start()
    tree = json.loads((CHART / "dashboards" / "learning.json").read_text())
    begins = {each["title"]: at for at, each in enumerate(tree["panels"]) if each["type"] == "row"}
    asked: dict[str, str] = {}
    for row in ROWS:
        for panel in [*tree["panels"][begins[row]].get("panels", []), *tree["panels"][begins[row] + 1 :]]:
            if panel["type"] == "row":
                break
            asked |= {f"{panel['title']}: {each}": without_zero(each) for each in expressions(panel)}
    assert len(asked) >= 9
    async with scraping(tmp_path, {"memory": (whole.whole.http, "/metrics")}) as prometheus:
        for number in range(2):  # a rate needs a figure from before
            await converses(whole, number)
            await until(partial(prometheus.scraped, number * 3 + 2), "scraped", seconds=20)

        async def none_is_empty() -> bool:
            for name, expression in list(asked.items()):
                if any(float(each["value"][1]) > 0 for each in await prometheus.value(expression)):
                    del asked[name]
            return not asked

        with suppress(AssertionError):
            await until(none_is_empty, "every panel showed something", seconds=20)
    assert list(asked) == []


async def test_no_panel_is_empty_while_the_sidecar_works(whole: WholeStand, tmp_path: Path) -> None:
    """A real Prometheus scrapes the sidecar and the real Envoy under load; every query gives series."""
    usage = {"prompt_tokens": 900, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 512}}
    whole.upstream.answers = an_answer(json.dumps({**ANSWER, "usage": usage}).encode())
    await whole.start()
    targets = {
        "memory": (whole.whole.http, "/metrics"),
        "envoy": (f"127.0.0.1:{whole.envoy.admin}", "/stats/prometheus"),
    }
    async with scraping(tmp_path, targets) as prometheus:
        for round_of in range(4):
            for user in ("ann", "bob"):
                for asked in ("My budget for the Hawaii trip is $10,000.", "What's my budget for the trip?"):
                    assert (await whole.chat(a_chat(asked), user=user)).status == 200
            await until(partial(prometheus.scraped, 2 * round_of + 2), "scraped again", seconds=20)
        empty = [
            f"{board.stem}: {panel['title']}: {expression}"
            for board in BOARDS
            for panel in panels(board)
            for expression in expressions(panel)
            if not await prometheus.value(expression)
        ]
        assert empty == []
        [started, *_] = [
            each for each in json.loads(BOARDS[0].read_text())["annotations"]["list"] if "expr" in each
        ]
        for name, value in _CHOSEN.items():
            started["expr"] = started["expr"].replace(name, value)
        assert [each["metric"]["version"] for each in await prometheus.value(started["expr"])] == [__version__]
        # What may be absent is 0 there; what must not be is asked without that.
        for name in ("exchanges_total", "recall_seconds_bucket", "turns_total", "store_up"):
            assert await prometheus.value(f"memory_extproc_{name}"), name
