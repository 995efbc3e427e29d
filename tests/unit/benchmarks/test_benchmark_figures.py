"""The promises of the benchmarks about their figures."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks import report, words
from benchmarks.figures import Chunks, Growth, Machine, Requests, Results, Size, Spread, Start, percentile
from benchmarks.gateway import bootstrap
from benchmarks.upstream import event, frame_chunk

SPREAD = Spread(1.0, 2.0)
WAYS = ("plain", "peer", "recall", "recall and learn")


def whole_results(**changes: Any) -> Results:
    made: dict[str, Any] = {
        "at": "2026-01-02",
        "quick": False,
        "machine": Machine(2, "x86_64", "3.11.7", {"envoy": "1.40.0"}),
        "requests": Requests(
            latency={
                "plain": Spread(1, 2),
                "peer": Spread(2, 4),
                "recall": Spread(3.5, 5),
                "recall and learn": Spread(4, 9),
            },
            added_to_peer=2.5,
            added_to_peer_p99=1.5,
            throughput=dict.fromkeys(WAYS, 1000.0),
            outcomes={"used": 10},
            added_bytes=600.0,
            samples=100,
        ),
        "chunks": Chunks(
            delay={"1": {"plain": SPREAD, "only answers": SPREAD, "recall and learn": SPREAD}},
            to_answering={"1": 1.2},
        ),
        "start": Start(rows=10_000, ready=[1.0, 2.0, 9.0], resident=350.0, resident_used=380.0),
        "growth": Growth(
            sizes={"Milvus Lite": [Size(10_000, SPREAD, SPREAD, SPREAD, 5000.0)] * 2},
            ratios={"Milvus Lite": {"store": 1.0, "cold": 1.0, "warm": 1.0}},
            missing={"Milvus 2.3.5": "no server for this machine"},
        ),
    }
    return Results(**(made | changes))


def test_no_two_numbers_ask_one_question() -> None:
    assert len({words.question(number) for number in range(words.QUESTIONS)}) == words.QUESTIONS


def test_a_question_too_many_is_refused_rather_than_repeated() -> None:
    with pytest.raises(ValueError, match="none has number"):
        words.question(words.QUESTIONS)


def test_every_question_asks_for_a_place_that_is_remembered() -> None:
    remembered = " ".join(words.memories())
    for number in range(0, words.QUESTIONS, 997):
        places = [word for word in re.findall(r"[A-Za-z]+", words.question(number)) if word in words.PLACES]
        assert len(places) == 1
        assert places[0] in remembered


def test_a_caller_says_a_thousand_different_things() -> None:
    assert len(set(words.memories())) == words.MEMORIES == 1000


def test_the_median_of_a_hundred_is_the_fiftieth_and_their_p99_the_ninety_ninth() -> None:
    values = random.Random(1).sample([float(number) for number in range(1, 101)], 100)
    assert (percentile(values, 50), percentile(values, 99), percentile(values, 100)) == (50, 99, 100)


def test_a_percentile_of_one_value_is_that_value() -> None:
    assert percentile([7.0], 1) == percentile([7.0], 99) == 7.0


def without_ext_proc(listener: Mapping[str, Any]) -> str:
    text = json.dumps(listener)
    for one in listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]:
        if one["name"] == "memory":
            text = text.replace(json.dumps(one) + ", ", "")
    port = listener["address"]["socket_address"]["port_value"]
    return text.replace(f'"{listener["name"]}"', "NAME").replace(f'"port_value": {port}', "PORT")


def test_the_ways_differ_in_nothing_but_the_ext_proc_filter() -> None:
    made = bootstrap(1, {"plain": None, "peer": 2, "recall": 3}, {"plain": 11, "peer": 12, "recall": 13}, 14)
    assert len({without_ext_proc(one) for one in made["static_resources"]["listeners"]}) == 1


def test_a_fault_of_a_server_that_is_measured_cannot_pass_for_speed() -> None:
    made = json.dumps(bootstrap(1, {"recall": 3}, {"recall": 13}, 14))
    assert '"failure_mode_allow": false' in made


def test_an_event_tells_when_it_was_written_and_is_framed_as_one_piece() -> None:
    piece = event(3, last=False)
    assert json.loads(piece.removeprefix(b"data: "))["at"] > 0
    size, _, rest = frame_chunk(piece).partition(b"\r\n")
    assert rest == piece + b"\r\n"
    assert int(size, 16) == len(piece)


def test_a_promise_that_was_not_kept_is_said_aloud() -> None:
    reached = {target.what: target.is_reached for target in whole_results().targets()}
    assert reached["latency added to a request, p50, against the peer's"]
    assert not reached["delay of a chunk, p50, 1 at once, against only answering"]
    assert reached["from start to ready"]
    assert reached["requests with recall, 8 clients"]  # 1,000/s, and at least 220
    requests = whole_results().requests
    assert requests is not None
    slower = msgspec.structs.replace(requests, throughput=dict.fromkeys(WAYS, 219.0))
    reached = {target.what: target.is_reached for target in whole_results(requests=slower).targets()}
    assert not reached["requests with recall, 8 clients"]
    assert "| **no** |" in "\n".join(report.markdown(whole_results()))


def test_the_added_latency_in_the_table_is_what_the_way_takes_beyond_the_plain_route() -> None:
    table = "\n".join(report.markdown(whole_results()))
    assert "| recall | 3.50 | 5.00 | 2.50 | 2.50 | 1,000 |" in table


def test_a_backend_that_is_not_there_is_named_with_its_reason() -> None:
    assert "no server for this machine" in "\n".join(report.markdown(whole_results()))


@pytest.mark.parametrize("part", ["requests", "chunks", "start", "growth"])
def test_a_part_that_was_left_out_leaves_nothing_behind(part: str) -> None:
    table = "\n".join(report.markdown(whole_results(**{part: None})))
    heading = {"requests": "A request", "chunks": "streamed", "start": "Start", "growth": "Growth"}[part]
    assert f"## {heading}" not in table
    assert table.startswith("# Cost of memory")


def test_a_report_is_written_whole_and_alike_from_the_same_figures(tmp_path: Path) -> None:
    for place in ("one", "two"):
        report.write(whole_results(), tmp_path / place)
    one, two = ({file.name: file.read_bytes() for file in (tmp_path / place).iterdir()} for place in ("one", "two"))
    assert one == two
    assert set(one) == {"README.md", "results.json", "latency.svg", "chunks.svg", "growth.svg"}


def test_results_survive_being_written_and_read() -> None:
    results = whole_results()
    assert msgspec.json.decode(msgspec.json.encode(results), type=Results) == results


def test_a_spread_is_told_in_milliseconds() -> None:
    assert math.isclose(Spread.of([0.001, 0.001, 0.003]).p50, 1.0)
