"""Checks of bodies that a gateway may truncate, buffer or reject: large, compressed, streamed, with tools."""

from __future__ import annotations

import gzip

from memory_extproc.doctor.gateway import Finding, GatewayResponse, GatewayVisit, fail, ok, unknown, warn

_KIB = 1024
_WORDS = "Please say hello."
_TOO_LARGE = 413
_HELD_BACK = 0.2  # seconds of a response; above it, a response that arrives at once was buffered


async def large_bodies(visit: GatewayVisit) -> Finding:
    """Pad with white space between members: valid JSON, and free of tokens, so that any model accepts it."""
    check = "large-bodies"
    most = visit.options.body_bytes
    sizes = [size for size in (48 * _KIB, 512 * _KIB, 2048 * _KIB) if size < most * 0.9] + [int(most * 0.95)]
    plain = visit.gateway.user_chat(_WORDS)
    for size in sizes:
        body = plain[:1] + b" " * (size - len(plain)) + plain[1:]
        answer = await visit.send(visit.options.ann, body, {"x-memory-retrieve": "skip"})
        shown = f"a body of {size // _KIB} KiB: {answer}"
        if answer.status == _TOO_LARGE:
            return fail(
                check,
                shown,
                f"raise the buffer limit before memory to at least {most // _KIB} KiB: "
                "per_connection_buffer_limit_bytes "
                "of the listener in Envoy and Istio, ClientTrafficPolicy connection.bufferLimit in Envoy "
                "Gateway (32 KiB "
                "by default)",
            )
        if answer.outcome == "too_large":
            return warn(
                check, shown, "the sidecar's limits.request_body is smaller: raise it, or say it with --body-limit"
            )
        if answer.good and not answer.memory:
            return fail(check, shown, "memory is passed by for large bodies: does Envoy wait long enough for it?")
        if not answer.status:
            return fail(
                check, shown, "request_body_mode must be BUFFERED: other modes hang or cut at a buffer's end"
            )
        if not answer.good:
            return unknown(check, shown, "the model, or a filter behind memory, refuses it")
    return ok(check, f"bodies up to {sizes[-1] // _KIB} KiB pass, with memory")


async def packed_requests(visit: GatewayVisit) -> Finding:
    check = "gzip-requests"
    body = gzip.compress(visit.gateway.user_chat(_WORDS))
    answer = await visit.send(visit.options.ann, body, {"content-encoding": "gzip", "x-memory-retrieve": "skip"})
    if not answer.status:
        return fail(check, str(answer), "a request that is packed hangs: no decompressor behind memory")
    if answer.outcome == "bad_body":
        return warn(check, str(answer), "memory cannot read what clients pack: is the body changed before it?")
    if not answer.good:
        return ok(check, f"the model takes no packed requests (HTTP {answer.status}), with or without memory")
    if not answer.memory:
        return fail(check, str(answer), "memory is passed by for packed requests")
    return ok(check, "packed requests are read")


async def packed_answers(visit: GatewayVisit) -> Finding:
    check = "gzip-answers"
    answer = await visit.send(
        visit.options.ann, visit.gateway.user_chat(_WORDS), {"accept-encoding": "gzip", "x-memory-retrieve": "skip"}
    )
    if not answer.status:
        return fail(
            check,
            f"a client that accepts gzip: {answer}",
            "Envoy's decompressor on answers and ext_proc hang together: remove it, memory reads packed "
            "answers itself",
        )
    if answer.good and not answer.json:
        return fail(check, "the answer cannot be unpacked", "a filter changes a packed answer as if it were text")
    if not answer.good:
        return unknown(check, str(answer))
    return ok(
        check, "packed answers pass" if answer.is_packed else "answers pass; neither model nor gateway packs them"
    )


async def streams(visit: GatewayVisit) -> Finding:
    """A streamed response passes incrementally, and is learned from."""
    check = "streams"
    answer = await visit.tell(visit.options.ann, f"My cat is called {visit.word()}.", stream=True)
    wrong = _wrong_with_stream(check, answer)
    if wrong is not None:
        return wrong
    if not visit.knows:
        return ok(check, "streamed answers pass")
    found = await visit.asked_until_used(visit.options.ann, "What is my cat called?")
    if found.outcome != "used":
        return warn(
            check, f"what was told beside a streamed answer is not found: {found}", "turns_total{outcome} says why"
        )
    return ok(check, "streamed answers pass piece by piece and are learned from")


def _wrong_with_stream(check: str, answer: GatewayResponse) -> Finding | None:
    if not answer.status:
        return fail(check, f"stream: true: {answer}", "response_body_mode must be STREAMED")
    if not answer.good or "text/event-stream" not in answer.headers.get("content-type", ""):
        return unknown(check, f"the model does not stream: {answer}")
    if "[DONE]" not in answer.text:
        return fail(
            check,
            "a streamed answer does not come to its end",
            "a timeout cuts it: the route's, or one for idle streams",
        )
    if _at_once(answer):
        return warn(
            check,
            f"{answer.seconds:.1f} s of streamed answer came all at once",
            "a filter holds answers back: response_body_mode STREAMED for memory, and no BUFFERED one beside it",
        )
    return None


async def tool_loops(visit: GatewayVisit) -> Finding:
    check = "tool-loops"
    call = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"what": "boat"}'}}
    parameters = {"type": "object", "properties": {"what": {"type": "string"}}}
    tool = {
        "type": "function",
        "function": {"name": "look_up", "description": "looks up", "parameters": parameters},
    }
    messages = (
        {"role": "user", "content": visit.question},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "nothing found"},
    )
    body = visit.gateway.chat(*messages, tools=[tool])
    with_memory = await visit.send(visit.options.ann, body)
    without = await visit.send(visit.options.ann, body, {"x-disable-router-memory": "true"})
    if with_memory.good and with_memory.memory:
        return ok(check, f"a conversation amid tools passes ({with_memory.outcome})")
    if with_memory.good:
        return fail(check, str(with_memory), "memory is passed by for requests with tools")
    if without.good:
        return fail(
            check,
            f"with memory: {with_memory}; without: {without}",
            "the model takes no memory where it was put: set inject.as",
        )
    return unknown(check, f"the model takes no tools: {without}", "")


def _at_once(answer: GatewayResponse) -> bool:
    """Whether a response of many pieces over some time arrived within its last tenth."""
    many = answer.text.count("data:") > 3  # noqa: PLR2004 - a beginning, a word, an end
    took = answer.seconds - (answer.at[0] if answer.at else 0.0)
    return many and answer.seconds > _HELD_BACK and took < answer.seconds / 10
