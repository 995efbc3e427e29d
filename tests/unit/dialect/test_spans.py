"""Where values end in a body: counted in its bytes, however much is nested in them."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given

from memory_extproc.dialect import json_spans
from tests.unit.dialect.json_texts import values

TOOL = {"name": "f", "parameters": {"properties": {"größe": {"enum": ["a]", "b}", '"'], "minimum": 1.0}}}}


@pytest.mark.parametrize("count", [0, 1, 50, 127, 128, 129, 1000])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_end_of_a_list_is_found_whatever_is_nested_in_it(count: int, ascii_only: bool) -> None:
    value = json.dumps([TOOL] * count, ensure_ascii=ascii_only).encode()
    body = b'{"\xc3\xa4": ' + value + b' , "after": [1]}'
    first, second = json_spans.members(body, 0)
    assert body[first.value : first.end] == value
    assert (second.name, body[second.value : second.end]) == ("after", b"[1]")


def test_the_end_of_a_value_longer_than_what_is_decoded_at_once_is_found() -> None:
    value = b"[" + b"[]," * 1000 + b'"' + b"[" * 300_000 + b'"]'
    assert json_spans.value_end(b'{"a":' + value + b', "b": []}', 5) == 5 + len(value)


@given(values)
def test_nesting_is_measured_as_it_is_written(text: str) -> None:
    def depth(value: object) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    def count(value: object) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if inner is None else 1 + sum(map(count, inner))

    value = json.loads(text, object_pairs_hook=lambda pairs: {str(at): one for at, (_, one) in enumerate(pairs)})
    assert json_spans.measure_nesting(text.encode()) == (depth(value), count(value))


def test_numbers_of_any_length_and_control_characters_are_passed_over() -> None:
    value = b"[" + b"[]," * 1000 + b"1" * 5000 + b',1e999,"\\ud800\x7f"]'
    body = b'{"a":' + value + b"}"
    assert json_spans.value_end(body, 5) == 5 + len(value)


def test_ten_thousand_tools_before_the_messages_cost_little() -> None:
    """Some thirty milliseconds, in truth; the bound is for what grows faster than a body."""
    body = json.dumps({"tools": [TOOL] * 10_000, "messages": []}).encode()
    started = time.process_time()
    assert [member.name for member in json_spans.members(body, 0)] == ["tools", "messages"]
    assert time.process_time() - started < 1.0
