"""Odd but lawful clients, through the real Envoy and the whole sidecar: memory reaches the model where there is a
place for it, every other byte is the client's own, and nothing fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from tests.support.collector import Collector
from tests.support.envoy import Stand, Wiring
from tests.support.upstream import Got
from tests.support.waiting import until
from tests.support.whole import WholeStand

pytestmark = pytest.mark.envoy

BUDGET = "My budget for the Hawaii trip is $10,000."
ASKED = "What's my budget for the Hawaii trip?"
# Of whom nothing is known; on a busy machine that may not be found out in time.
UNKNOWN = ("empty", "nothing_relevant")
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
# What is sent here is not kept, so that no case of a table meets what another left behind.
ANN = {"x-authz-user-id": "ann", "x-memory-incognito": "true", "content-type": "application/json"}
PNG = "data:image/png;base64,iVBORw0KGgo="


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"a": 1.0}'}}
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]

CHATS: dict[str, dict[str, Any]] = {
    "several choices": {"messages": [user(ASKED)], "n": 3, "seed": 2**63, "temperature": 1.0},
    "usage in the stream": {"messages": [user(ASKED)], "stream": False, "stream_options": {"include_usage": True}},
    "a tool must be called": {"messages": [user(ASKED)], "tools": TOOLS, "tool_choice": "required"},
    "a tool by name": {
        "messages": [user(ASKED)],
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "look_up"}},
        "parallel_tool_calls": False,
    },
    "functions of old": {"messages": [user(ASKED)], "functions": [{"name": "f"}], "function_call": "auto"},
    "a picture": {
        "messages": [
            user(
                [{"type": "text", "text": ASKED}, {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}]
            )
        ]
    },
    "a picture first": {
        "messages": [user([{"type": "image_url", "image_url": {"url": PNG}}, {"type": "text", "text": ASKED}])]
    },
    "sound": {
        "messages": [
            user(
                [
                    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                    {"type": "text", "text": ASKED},
                ]
            )
        ],
        "modalities": ["text", "audio"],
        "audio": {"voice": "alloy", "format": "wav"},
    },
    "a file": {
        "messages": [user([{"type": "file", "file": {"file_id": "file-1"}}, {"type": "text", "text": ASKED}])]
    },
    "a prefilled answer": {"messages": [user(ASKED), {"role": "assistant", "content": "Your budget is"}]},
    "a developer": {"model": "gpt-4o", "messages": [{"role": "developer", "content": "Be brief"}, user(ASKED)]},
    "a late system message": {"messages": [user(ASKED), {"role": "system", "content": "Answer in French"}]},
    "two users in a row": {"messages": [user("Hello there, I am back."), user(ASKED, name="ann_smith")]},
    "tool calls without words": {
        "messages": [
            user(ASKED),
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "42"}]},
        ],
        "tools": TOOLS,
    },
    "a refusal before": {
        "messages": [user("Hi"), {"role": "assistant", "content": None, "refusal": "I won't"}, user(ASKED)]
    },
    "sound answered before": {
        "messages": [user("Hi"), {"role": "assistant", "audio": {"id": "audio_1"}}, user(ASKED)],
    },
    "a role of tomorrow": {"messages": [{"role": "critic", "content": {"score": 1}}, user(ASKED)]},
    "a scheme for the answer": {
        "messages": [user(ASKED)],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    },
    "odds and ends": {
        "messages": [user(ASKED)],
        "logit_bias": {"50256": -100},
        "metadata": {"user_id": "7"},
        "store": True,
        "prediction": {"type": "content", "content": "x"},
        "user": "u-1",
        "reasoning_effort": "high",
        "max_completion_tokens": None,
    },
}
RESPONSES_BODIES: dict[str, dict[str, Any]] = {
    "words alone": {"input": ASKED, "store": False},
    "items": {"input": [user([{"type": "input_text", "text": ASKED}])], "include": ["reasoning.encrypted_content"]},
    "reasoning behind": {
        "input": [
            user("Hi"),
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]},
            user(ASKED),
        ]
    },
    "continued from a response": {"input": ASKED, "previous_response_id": "resp_1", "truncation": "auto"},
    "in a conversation of the provider's": {"input": ASKED, "conversation": {"id": "conv_1"}},
    "an item by reference": {"input": [{"type": "item_reference", "id": "m1"}, user(ASKED)]},
    "a picture and a file": {
        "input": [
            user(
                [
                    {"type": "input_image", "image_url": PNG},
                    {"type": "input_file", "file_id": "file-1"},
                    {"type": "input_text", "text": ASKED},
                ]
            )
        ]
    },
    "built-in tools": {
        "input": [user(ASKED), {"type": "web_search_call", "id": "ws_1", "status": "completed"}],
        "tools": [{"type": "web_search_preview"}, {"type": "mcp", "server_label": "x", "server_url": "https://x"}],
    },
    "a tool's answer": {
        "input": [
            user(ASKED),
            {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "42"}]},
        ]
    },
    "in the background": {"input": ASKED, "background": True, "metadata": {}, "service_tier": "flex"},
    "instructions of a developer": {
        "instructions": "Be brief",
        "input": [{"role": "developer", "content": "x"}, user(ASKED)],
    },
}
ANTHROPIC: dict[str, dict[str, Any]] = {
    "system in cached blocks": {
        "system": [
            {"type": "text", "text": "You are Claude."},
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        ],
        "messages": [user([{"type": "text", "text": ASKED, "cache_control": {"type": "ephemeral"}}])],
    },
    "thought aloud": {
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "messages": [
            user("Hi"),
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "Hello"},
                ],
            },
            user(ASKED),
        ],
    },
    "a tool's answer with words": {
        "messages": [
            user("Look it up"),
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]},
            user([{"type": "tool_result", "tool_use_id": "t1", "content": "42"}, {"type": "text", "text": ASKED}]),
        ]
    },
    "a document and a picture": {
        "messages": [
            user(
                [
                    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                    {"type": "text", "text": ASKED},
                ]
            )
        ]
    },
    "a prefilled answer": {"messages": [user(ASKED), {"role": "assistant", "content": "Your budget is"}]},
    "a tool of the server's": {
        "tools": [{"type": "web_search_20250305", "name": "web_search"}],
        "mcp_servers": [{"type": "url", "url": "https://x", "name": "x"}],
        "messages": [user(ASKED)],
    },
}
NOBODY_ASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "a system message alone": (CHAT, {"messages": [{"role": "system", "content": "Say hello"}]}),
    "no messages at all": (CHAT, {"messages": []}),
    "an empty message": (CHAT, {"messages": [user("")]}),
    "no content": (CHAT, {"messages": [{"role": "user"}]}),
    "null": (CHAT, {"messages": [user(None)]}),
    "a picture without words": (CHAT, {"messages": [user([{"type": "image_url", "image_url": {"url": PNG}}])]}),
    "no parts": (CHAT, {"messages": [user([])]}),
    "a stored prompt": (RESPONSES, {"prompt": {"id": "pmpt_1", "variables": {"city": "Rome"}}}),
    "only a tool's answer": (
        RESPONSES,
        {
            "previous_response_id": "resp_1",
            "input": [{"type": "function_call_output", "call_id": "c", "output": "1"}],
        },
    ),
    "no items": (RESPONSES, {"input": []}),
    "only tool results": (
        MESSAGES,
        {"messages": [user([{"type": "tool_result", "tool_use_id": "t1", "is_error": True}])]},
    ),
}


async def with_a_memory(whole: WholeStand) -> None:
    await whole.start()
    await whole.say(BUDGET)
    await until(lambda: whole.sample("remembered_total", role="user", decision="kept") == 1, "it is kept")


def fault_of(sent: bytes, got: Got, status: int) -> str:
    """What is wrong with how *sent* came through; empty when only a block with the memory was put in."""
    if status != 200:
        return f"status {status}"
    more = len(got.body) - len(sent)
    if more <= 0 or b"$10,000" not in got.body:
        return "the memory did not reach the model"
    at = next((at for at, (a, b) in enumerate(zip(sent, got.body, strict=False)) if a != b), len(sent))
    # What was put in may begin as what follows it does, hence the look back.
    if not any(got.body[: at - back] + got.body[at - back + more :] == sent for back in range(min(at, 40))):
        return "a byte of the client's changed"
    if int(got.headers.get("content-length", len(got.body))) != len(got.body):
        return "the length is wrong"
    return "" if json.loads(got.body.decode("utf-8-sig")) else "it is no JSON any more"


@pytest.mark.parametrize(
    ("path", "bodies"),
    [
        pytest.param(CHAT, CHATS, id="chat completions"),
        pytest.param(RESPONSES, RESPONSES_BODIES, id="responses"),
        pytest.param(MESSAGES, ANTHROPIC, id="messages"),
    ],
)
async def test_whatever_else_a_request_holds_memory_goes_in_and_all_else_stays(
    whole: WholeStand, path: str, bodies: Mapping[str, dict[str, Any]]
) -> None:
    await with_a_memory(whole)
    faults: dict[str, str] = {}
    for name, body in bodies.items():
        sent = json.dumps({"model": "demo", "max_tokens": 100, **body}, ensure_ascii=len(name) % 2 == 0).encode()
        answer = await whole.send("POST", path, data=sent, headers=ANN)
        if fault := fault_of(sent, whole.upstream.got[-1], answer.status):
            faults[name] = f"{fault}; {answer.memory}"
    assert faults == {}


async def test_where_nobody_asks_anything_the_request_passes_as_it_is(whole: WholeStand) -> None:
    await with_a_memory(whole)
    faults: dict[str, str] = {}
    for name, (path, body) in NOBODY_ASKS.items():
        sent = json.dumps({"model": "demo", **body}).encode()
        answer = await whole.send("POST", path, data=sent, headers=ANN)
        if answer.status != 200 or whole.upstream.got[-1].body != sent:
            faults[name] = f"{answer.status} {answer.memory}"
    assert faults == {}


async def test_bytes_that_only_look_odd_stay_as_the_client_wrote_them(whole: WholeStand) -> None:
    await with_a_memory(whole)
    asked = ASKED.encode()
    faults: dict[str, str] = {}
    for name, sent in {
        "white space": b'\r\n\t {"messages" :\n[ {"content"\t:  "'
        + asked
        + b'" ,\n "role":"user" } ]\r\n , "model":"demo" }\n\n',
        "a byte order mark": b'\xef\xbb\xbf{"messages":[{"role":"user","content":"' + asked + b'"}]}',
        "keys twice": b'{"messages":[],"messages":[{"role":"system","role":"user","content":"x","content":"'
        + asked
        + b'"}],"model":"demo"}',
        "escapes": b'{"mess\\u0061ges":[{"role":"\\u0075ser","content":"\\u0057hat\'s my budget for the Hawaii '
        b'trip?\\u0020\\ud83d\\udc1d\\/"}]}',
        "numbers": b'{"seed":123456789012345678901234567890,"top_p":1.0,"x":1E-400,"messages":[{"role":"user",'
        b'"content":"' + asked + b'"}]}',
        "emoji": b'{"messages":[{"role":"user","content":"' + asked + "🐝🇩🇪👨\u200d👩\u200d👧".encode() + b'"}]}',
        "control": b'{"messages":[{"role":"user","content":"' + asked + b'\\u0000\\u001b[0m"}]}',
    }.items():
        answer = await whole.send("POST", CHAT, data=sent, headers=ANN)
        if fault := fault_of(sent, whole.upstream.got[-1], answer.status):
            faults[name] = f"{fault}; {answer.memory}"
    assert faults == {}


async def test_however_the_request_travels_it_is_served(whole: WholeStand) -> None:
    await with_a_memory(whole)
    sent = json.dumps({"model": "demo", "messages": [user(ASKED)]}).encode()
    faults: dict[str, str] = {}
    for name, (path, headers) in {
        "a query": (CHAT + "?api-version=2024-10-21&x=%2F..", {}),
        "an empty query": (CHAT + "?", {}),
        "a trailing slash": (CHAT + "/", {}),
        "behind a prefix": ("/openai/deployments/gpt%204o/chat/completions?api-version=1", {}),
        "a parameter": (CHAT, {"content-type": "application/json; charset=UTF-8"}),
        "capitals": (CHAT, {"content-type": "Application/JSON;Charset=utf-8"}),
        "a kind of JSON": (CHAT, {"content-type": "application/vnd.api+json"}),
        "long headers": (CHAT, {f"x-long-{number}": "v" * 4_000 for number in range(10)}),
        "many headers": (CHAT, {f"x-{number}": "v" for number in range(80)}),
        "beta": (CHAT, {"openai-beta": "assistants=v2", "anthropic-beta": "a,b", "idempotency-key": "k"}),
        "letters beyond ASCII in a header": (CHAT, {"x-title": "Größe 尺寸"}),
        "expects to go on": (CHAT, {"expect": "100-continue"}),
    }.items():
        answer = await whole.send("POST", path, data=sent, headers={**ANN, **headers})
        if fault := fault_of(sent, whole.upstream.got[-1], answer.status):
            faults[name] = f"{fault}; {answer.memory}"
    assert faults == {}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/messages/count_tokens",
        "/v1/messages/batches",
        "/v1/batches",
        "/v1/responses/resp_1/cancel",
        "/v1/chat/completions/chatcmpl-1",
        "/v1/chat%2Fcompletions",
        "/v1/CHAT/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/chat/completions;v=1",
    ],
)
async def test_what_is_near_a_chat_and_is_none_passes_as_it_is(whole: WholeStand, path: str) -> None:
    await whole.start()
    sent = json.dumps({"model": "demo", "messages": [user(ASKED)], "memory_config": {"enabled": True}}).encode()
    answer = await whole.send("POST", path, data=sent, headers=ANN)
    assert answer.status == 200
    assert whole.upstream.got[-1].body == sent
    assert not [name for name in whole.upstream.got[-1].headers if name.startswith("x-memory")]


@pytest.mark.parametrize(
    "who", ["ann@例え.jp", "Zoë", "ann smith", "a" * 200, "ann%20smith", "ann/../bob", "ann'--"]
)
async def test_any_name_a_gateway_gives_is_a_caller_of_their_own(whole: WholeStand, who: str) -> None:
    await whole.start()
    # As UTF-8, which is what gateways write; the client library would not.
    named = {"x-authz-user-id": who.encode().decode("latin-1")}
    for words, expected in ((BUDGET, UNKNOWN), (ASKED, ("used;n=1",))):
        raw = json.dumps({"model": "demo", "messages": [user(words)]}).encode()
        answer = await raw_post(whole, raw, {"content-type": "application/json", **named})
        assert any(f"x-memory-status: {word}".encode() in answer for word in expected)
    assert (await whole.say(ASKED, user="bob")).memory in UNKNOWN


async def test_a_body_in_chunks_with_trailers_is_served(whole: WholeStand) -> None:
    await with_a_memory(whole)
    sent = json.dumps({"model": "demo", "messages": [user(ASKED)]}).encode()
    chunks = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(one), one) for one in (sent[:7], sent[7:8], sent[8:]))
    headers = {**ANN, "transfer-encoding": "chunked", "trailer": "x-check"}
    answer = await raw_post(whole, chunks + b"0\r\nx-check: 1\r\n\r\n", headers)
    assert answer.startswith(b"HTTP/1.1 200")
    assert fault_of(sent, whole.upstream.got[-1], 200) == ""


async def test_an_http2_client_is_served(whole: WholeStand) -> None:
    await with_a_memory(whole)
    sent = json.dumps({"model": "demo", "messages": [user(ASKED)]}).encode()
    answer = await http2_post(whole, sent)
    assert b"It is $10,000." in answer
    assert fault_of(sent, whole.upstream.got[-1], 200) == ""


@pytest.mark.parametrize("odd", [" a=b", "a=b ", "\ta=b", "a=b,,=", "a=" + "b" * 100])
async def test_a_trace_state_of_any_form_is_served(stand: Stand, odd: str) -> None:
    """Envoy passes it on in the metadata of its connection to the sidecar, whose other streams must not end."""
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": odd}
    sent = json.dumps({"model": "demo", "messages": [user(ASKED)]}).encode()
    async with Collector() as collector:
        await stand.start(Wiring(collector=collector.port))
        await http2_post(stand, sent, **trace)
        assert b"<memories>" in stand.upstream.got[-1].body


async def raw_post(whole: WholeStand, body: bytes, headers: Mapping[str, str]) -> bytes:
    """The whole answer to a request written by hand; header values are written as Latin-1."""
    length = {} if "transfer-encoding" in headers else {"content-length": str(len(body))}
    named = {"host": "x", "connection": "close", **length, **headers}
    head = "\r\n".join([f"POST {CHAT} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())])
    return await exchanged(whole, head.encode("latin-1") + b"\r\n\r\n" + body, until_closed)


async def http2_post(stand: Stand, body: bytes, **more: str) -> bytes:
    """The data frames that answer a request on a connection that begins with HTTP/2 (RFC 9113, section 3.3)."""
    pseudo = {":method": "POST", ":scheme": "http", ":path": CHAT, ":authority": "x"}
    # HPACK's plainest form, RFC 7541, section 6.2.2: literal, not indexed, names new, no Huffman coding.
    fields = b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in {**pseudo, **ANN, **more}.items()
    )
    half = len(body) // 2
    request = (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + frame(SETTINGS, 0, 0)
        + frame(HEADERS, END_HEADERS, 1, fields)
        + frame(DATA, 0, 1, body[:half])
        + frame(DATA, END_STREAM, 1, body[half:])
    )
    return await exchanged(stand, request, until_stream_ends)


DATA, HEADERS, SETTINGS = 0, 1, 4  # kinds of frames
END_STREAM, END_HEADERS = 1, 4  # flags


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


async def until_stream_ends(reader: asyncio.StreamReader) -> bytes:
    found, flags, stream = b"", 0, 0
    while not (stream and flags & END_STREAM):
        head = await reader.readexactly(9)
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:])
        payload = await reader.readexactly(int.from_bytes(head[:3]))
        found += payload if kind == DATA else b""
    return found


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    return await reader.read()


async def exchanged(
    stand: Stand, request: bytes, answered: Callable[[asyncio.StreamReader], Awaitable[bytes]]
) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", stand.envoy.front)
    writer.write(request)
    try:
        async with asyncio.timeout(20):
            return await answered(reader)
    finally:
        writer.close()
