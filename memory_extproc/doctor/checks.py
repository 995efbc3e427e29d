"""Checks through the gateway, in their order; a failed check skips the checks that depend on it.

Recall: memories are found by their owner only, and reach the model. Bodies that a gateway may truncate, buffer or
reject. Authentication: the right identity, which cannot be forged."""

from __future__ import annotations

import gzip
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp

from memory_extproc.doctor import check_envoy
from memory_extproc.doctor.check_envoy import FilterChain, read_chains, read_counters
from memory_extproc.doctor.gateway import (
    CheckVerdict,
    Finding,
    GatewayResponse,
    GatewayVisit,
    fail,
    ok,
    unknown,
    warn,
)

_CACHE_HEADERS = ("x-vsr-cache-hit", "x-cache", "x-cache-status", "x-semantic-cache", "age")
_ROUTER_CACHE = ("x-vsr-cache-hit", "x-vsr-response-path")
_BYPASS = (
    "the router's response cache needs scope: user (global, team and tenant serve one person's answer to "
    "another), or callers must bypass it: x-vsr-cache-control: bypass for the vLLM Semantic Router (the chart "
    "writes it), a key that "
    "holds the caller for others, or no cache on this route"
)
_MORE = 3  # tokens that a block adds at the very least
_CONTROLS = {"x-memory-signal-fact": "true", "x-memory-project": "", "x-disable-router-memory": "true"}


async def remembers(visit: GatewayVisit) -> Finding:
    """Tell a fact as ann, and ask for it in another conversation."""
    check = "remembers"
    ann = visit.options.ann
    before = await visit.ask(ann, visit.question)
    if before.outcome == "used":
        return unknown(
            check,
            "the test account remembers something that fits already, so nothing can be told from its answers",
            "give tokens of accounts without memories",
        )
    told = await visit.tell(ann, f"My boat is called {visit.canary}.")
    after = await visit.asked_until_used(ann, "What is my boat called?")
    visit.knows = after.outcome == "used"
    if visit.knows:
        return ok(check, f"what was told in one conversation is found in the next ({after.memory})")
    if _same_answer(visit, before, after):
        return fail(check, "one answer is given to different questions: a cache answers in memory's place", _BYPASS)
    mends = {
        "unavailable": "the store or the embedding model is away: memory_extproc_store_up and the sidecar's log",
        "out_of_time": "recall is slower than recall.deadline: recall_seconds{stage} tells where",
        "overloaded": "more recalls at once than recall.max_concurrent: more replicas",
        "no_consent": "the account allows no memory, or its tenant is opt_in: give another",
        "empty": "nothing was learned: turns_total{outcome} of the sidecar says why (storing may be off, "
        "the answer "
        "must be a 200 that comes to its end, and its last message must reach the sidecar)",
    }
    mend = mends.get(after.outcome, "look at turns_total{outcome} and exchanges_total{outcome} of the sidecar")
    seen = f"told ({told}), asked for {visit.options.learned_within:g} s: {after}"
    return fail(check, seen, mend)


async def two_people(visit: GatewayVisit) -> Finding:
    """Bob asks for ann's fact: in the same words, which a cache may answer, then in others."""
    check = "two-people"
    if not visit.knows:
        return unknown(check, "needs a caller with a memory")
    ann, bob = visit.options.ann, visit.options.bob
    question = visit.question
    anns = await visit.ask(ann, question)
    same = await visit.ask(bob, question)
    other = await visit.ask(bob, visit.question)
    shown = visit.canary.lower()
    if not (same.good and other.good):
        return unknown(check, f"{same}; {other}")
    from_cache = any(same.headers.get(name, "").lower() in {"true", "cache"} for name in _ROUTER_CACHE)
    if from_cache or _is_cached(anns, same, other) or _same_answer(visit, anns, same):
        return fail(
            check,
            "a second person who asks the same words is given the first one's answer: a cache that does not "
            "ask who asks",
            _BYPASS,
        )
    if "used" in (same.outcome, other.outcome):
        leaked = shown in same.text.lower() or shown in other.text.lower()
        what = (
            "the first one's words reach the second" if leaked else "memory is used for somebody who told nothing"
        )
        return fail(
            check,
            f"{what}: both are the same caller to memory, or the second account has memories of its own",
            "does the filter that says who asks give each account a user of its own? Else give two accounts "
            "without memories",
        )
    hit = next((name for name in _CACHE_HEADERS if _hit(same.headers.get(name, ""))), "")
    if hit:
        return warn(check, f"the answer carries {hit}", "let identified callers bypass the cache")
    return ok(check, f"a second person is told nothing of the first ({same.outcome})")


async def reaches_the_model(visit: GatewayVisit) -> Finding:
    """Memory reports an injection; check with the model that it arrived."""
    check = "block-reaches-the-model"
    if not visit.knows:
        return unknown(check, "needs a caller with a memory")
    used = await visit.ask(visit.options.ann, visit.question)
    plain = await visit.ask(visit.options.ann, visit.question, {"x-memory-retrieve": "skip"})
    if used.outcome != "used" or not plain.good:
        return unknown(check, f"with memory: {used}; without: {plain}")
    lost = fail(
        check,
        "memory injects, and the model is sent the body without it: another filter behind memory puts back "
        "the one it had",
        "a filter that rebuilds bodies (the Envoy AI Gateway's, a router's own ext_proc) must stand BEFORE "
        "memory where "
        "it keeps what it is given, or memory before it where it does not: docs/gateways",
    )
    if used.echo is not None:
        arrived = visit.canary in json.dumps(used.echo.get("body"))
        return ok(check, "the echo model was sent the memory") if arrived else lost
    if used.prompt_tokens is None or plain.prompt_tokens is None:
        return unknown(
            check,
            "the model does not say how many tokens it read",
            "put the echo model behind the gateway: memory-extproc doctor --serve-echo HOST:PORT",
        )
    more = used.prompt_tokens - plain.prompt_tokens
    return ok(check, f"the model read {more} tokens more with memory") if more >= _MORE else lost


async def opting_out(visit: GatewayVisit) -> Finding:
    check = "opting-out"
    answer = await visit.ask(visit.options.ann, visit.question, {"x-disable-router-memory": "true"})
    if answer.outcome == "opted_out":
        return ok(check, "x-disable-router-memory is honoured")
    if answer.outcome in {"disabled", "no_caller"}:
        return unknown(check, str(answer))
    return fail(
        check,
        f"x-disable-router-memory: true, and yet: {answer}",
        "a filter before memory removes a client's x-disable-router-memory or x-memory-* headers; let them through",
    )


async def controls_stay(visit: GatewayVisit) -> Finding:
    """Memory controls must not reach the model's provider."""
    check = "control-headers"
    body = visit.gateway.user_chat("Please say hello.", memory_config={"auto_store": False}, memory_context={})
    answer = await visit.send(visit.options.ann, body, _CONTROLS)
    if answer.echo is None:
        return unknown(
            check,
            "only the model knows what it is sent",
            "put the echo model behind the gateway: memory-extproc doctor --serve-echo HOST:PORT",
        )
    headers, sent = answer.echo.get("headers"), answer.echo.get("body")
    names = sorted(name for name in headers if _ours(name)) if isinstance(headers, Mapping) else []
    fields = sorted({"memory_config", "memory_context"} & sent.keys()) if isinstance(sent, Mapping) else []
    if names or fields:
        return fail(
            check,
            f"the model is sent {', '.join(names + fields)}",
            "the filter's mutation_rules keep memory from removing them, or a filter behind memory adds "
            "them again; "
            "remove them in Envoy too, before a provider that is not yours",
        )
    if isinstance(headers, Mapping) and visit.options.user_header in headers:
        return warn(
            check,
            f"the model is sent {visit.options.user_header}",
            "identity.strip_headers: true, if the model's provider is somebody else",
        )
    return ok(check, "nothing that is meant for memory reaches the model")


def _ours(name: str) -> bool:
    return name.startswith("x-memory-") or name == "x-disable-router-memory"


def _is_cached(anns: GatewayResponse, same: GatewayResponse, other: GatewayResponse) -> bool:
    """A cache in front of memory gives bob ann's status, or none, for ann's words, and his own for others."""
    return (same.memory == anns.memory or not same.memory) and other.memory not in {"", same.memory}


def _same_answer(visit: GatewayVisit, one: GatewayResponse, other: GatewayResponse) -> bool:
    """Whether a cache gave both. Most models give each response its own id."""
    id_ = one.json.get("id")
    return bool(id_) and id_ == other.json.get("id") != visit.cold.json.get("id")


def _hit(value: str) -> bool:
    return value.lower() in {"hit", "true", "1"} or (value.isdecimal() and int(value) > 0)


# --- bodies ------------------------------------------------------------------------------------------


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


# --- identity ----------------------------------------------------------------------------------------


_REFUSED = frozenset({401, 403})
_HELLO = "Please say hello."


async def reaches_a_model(visit: GatewayVisit) -> Finding:
    check = "reaches-a-model"
    answer = visit.cold = await visit.ask(visit.options.ann, _HELLO, {"x-memory-retrieve": "skip"})
    if answer.good:
        return ok(check, f"a chat of model {visit.gateway.model!r} is answered")
    mend = {
        0: "is the URL right, and does Envoy listen there?",
        401: "give the credentials of a test account with --token, or a header with --header",
        403: "give the credentials of a test account with --token, or a header with --header",
        404: "name the path with --path and the model with --model",
        400: "name a model that the gateway serves with --model",
    }.get(answer.status, "mend the way to the model first; memory has nothing to do with this")
    return fail(check, str(answer), mend)


async def memory_is_there(visit: GatewayVisit) -> Finding:
    check = "memory-in-the-path"
    answer = visit.cold
    if not answer.memory:
        return fail(
            check,
            "answers carry no x-memory-status: requests pass memory by, and nobody is told",
            "the filter is not on this route, is not accepted by the gateway (look at its policy's status), "
            "or Envoy cannot reach the sidecar (away, TLS on one side alone as before a STRICT mesh, a "
            "NetworkPolicy) or waits too short for it and fails open; --admin tells which",
        )
    if answer.outcome in {"not_chat", "bad_body"}:
        return fail(
            check, str(answer), "another filter changes path or body before memory, or --path is no chat API"
        )
    if answer.outcome in {"disabled", "shadowed", "control"}:
        return warn(check, str(answer), "this is what the configuration says: memory.enabled, mode, rules")
    return ok(check, "answers carry x-memory-status")


async def knows_who_asks(visit: GatewayVisit) -> Finding:
    """Whether a caller known to the gateway is known to memory too."""
    check = "knows-who-asks"
    answer = await visit.ask(visit.options.ann, _HELLO)
    header = visit.options.user_header
    if answer.outcome != "no_caller":
        return ok(check, f"memory knows the caller ({answer.outcome})")
    if visit.options.proven:
        return fail(
            check,
            "the gateway accepts the credentials, and memory does not know whose they are (no_caller)",
            f"the filter that says who asks must stand before memory and set {header} (or the metadata that "
            "identity.* "
            "names); in Envoy Gateway and Istio look at the order of the filters",
        )
    return unknown(
        check,
        f"a client's own {header} is taken away, as it should be, so the doctor is nobody here",
        "give the tokens of two test accounts (--token twice) to have recall looked at",
    )


async def cannot_be_forged(visit: GatewayVisit) -> Finding:
    """A user header from an unauthenticated client."""
    check = "forged-identity"
    options = visit.options
    forged = visit.forge_caller(**{options.user_header: f"{visit.name}-forged"})
    answer = await visit.ask(forged, _HELLO)
    if _is_known_caller(answer):
        seen = f"whoever sends {options.user_header} is believed ({answer.outcome})"
        if options.trusted_edge:
            return ok(check, f"{seen}, and only your own edge reaches this URL, as you said")
        return fail(check, seen, _strip(options.user_header))
    if not answer.good and answer.status not in _REFUSED:
        return unknown(check, f"without credentials: {answer}")
    return ok(check, f"a client's {options.user_header} alone names nobody ({_short(answer)})")


async def body_cannot_name(visit: GatewayVisit) -> Finding:
    check = "forged-identity-in-body"
    body = visit.gateway.user_chat(_HELLO, memory_context={"user_id": f"{visit.name}-forged"})
    answer = await visit.send(visit.nobody, body)
    if _is_known_caller(answer):
        return fail(
            check,
            f"memory_context.user_id of a request body is believed ({answer.outcome})",
            "identity.trust_body: false, unless nobody but your own application reaches this gateway",
        )
    if not answer.good and answer.status not in _REFUSED:
        return unknown(check, f"without credentials: {answer}")
    return ok(check, f"a body names nobody ({_short(answer)})")


async def credentials_outweigh_headers(visit: GatewayVisit) -> Finding:
    """Forged identity headers with a real credential: the credential must win."""
    check = "forged-beside-credentials"
    options = visit.options
    if not options.proven:
        return unknown(check, "needs credentials that the gateway verifies (--token)")
    if not visit.knows:
        return unknown(check, "needs a caller with a memory")
    for header in (options.user_header, options.tenant_header):
        if not header:
            continue
        answer = await visit.ask(options.ann.with_headers({header: f"{visit.name}-forged"}), visit.question)
        if answer.outcome in {"empty", "nothing_relevant"}:
            return fail(
                check,
                f"{header} from a client outweighs its credentials: with the header, another's memory is asked",
                _strip(header),
            )
    return ok(check, "forged headers beside credentials change nothing")


async def roles_cannot_be_forged(visit: GatewayVisit) -> Finding:
    """A client sends the header that grants roles in the memory API."""
    check = "forged-role"
    options = visit.options
    # A search by POST, because a GET of a plain user passes over the name of another.
    others = json.dumps({"user_id": f"{visit.name}-other", "query": "what is known"}).encode()
    json_body = {"content-type": "application/json"}
    plain, forged = [
        await visit.gateway.call("POST", "/v1/memory:search", caller.with_headers(json_body).headers, others)
        for caller in (options.ann, options.ann.with_headers({options.roles_header: "admin"}))
    ]
    if forged.good and not plain.good:
        seen = f"whoever sends {options.roles_header}: admin reads the memories of others over the memory API"
        if options.trusted_edge:
            return ok(check, f"{seen}, and only your own edge reaches this URL, as you said")
        return fail(check, seen, _strip(options.roles_header))
    if plain.status not in _REFUSED:
        return unknown(check, f"the memory API beside the chats does not refuse by itself (HTTP {plain.status})")
    return ok(check, f"a client's {options.roles_header} gives it no role (HTTP {forged.status})")


def _is_known_caller(answer: GatewayResponse) -> bool:
    return answer.good and bool(answer.memory) and answer.outcome != "no_caller"


def _short(answer: GatewayResponse) -> str:
    return f"HTTP {answer.status}" if not answer.good else answer.outcome or "no memory"


def _strip(header: str) -> str:
    return (
        f"remove {header} with a header_mutation filter that stands BEFORE memory and before the filter "
        "that sets it "
        "(request_headers_to_remove of a route acts after memory); `memory-extproc envoy-config --identity "
        "strip` and "
        "the chart write it. If only your own edge reaches this URL: --trusted-edge"
    )


# --- all checks --------------------------------------------------------------------------------------


Check = Callable[[GatewayVisit], Awaitable[Finding]]
Report = Callable[[Finding], None]

# If these fail, the remaining checks would repeat the same fault.
_FIRST: tuple[Check, ...] = (reaches_a_model, memory_is_there)
_ANYBODY: tuple[Check, ...] = (
    cannot_be_forged,
    body_cannot_name,
    large_bodies,
    packed_requests,
    packed_answers,
)
_CALLERS: tuple[Check, ...] = (
    remembers,
    two_people,
    reaches_the_model,
    credentials_outweigh_headers,
    opting_out,
    streams,
    tool_loops,
)
_FORGOTTEN = 200


async def examine(visit: GatewayVisit, admin: Admin | None, report: Report) -> list[Finding]:
    """Run all checks and return the findings in the order of *report*. Planted facts are always forgotten at the
    end."""
    findings = list[Finding]()

    def add_finding(finding: Finding) -> None:
        findings.append(finding)
        report(finding)

    before = await admin.counters() if admin else None
    try:
        await _ask(visit, add_finding)
    finally:
        if visit.kept:
            add_finding(await leave_nothing(visit))
    add_finding(stayed_in_the_path(visit))
    if admin is not None:
        await _look(admin, before, visit.options.body_bytes, add_finding)
    return findings


async def _ask(visit: GatewayVisit, found: Report) -> None:
    for check in _FIRST:
        finding = await check(visit)
        found(finding)
        if finding.verdict is CheckVerdict.FAIL:
            return
    who = await knows_who_asks(visit)
    found(who)
    for check in _ANYBODY:
        found(await check(visit))
    found(await controls_stay(visit))
    if visit.options.roles_header:
        found(await roles_cannot_be_forged(visit))
    if who.verdict is CheckVerdict.OK:
        for check in _CALLERS:
            found(await check(visit))


def stayed_in_the_path(visit: GatewayVisit) -> Finding:
    """All responses of the visit: a response without the header bypassed memory silently."""
    check = "stays-in-the-path"
    good = [answer for answer in visit.gateway.answers if answer.good]
    silent = sum(not answer.memory for answer in good)
    late = sum(answer.outcome == "out_of_time" for answer in good)
    away = sum(answer.outcome in {"unavailable", "overloaded"} for answer in good)
    if not good or silent == len(good):
        return unknown(check, "memory was in none of the answers")
    if silent:
        return warn(
            check,
            f"{silent} of {len(good)} answers had no x-memory-status",
            "Envoy fails open now and then: timeouts, a replica that is away, a full circuit breaker; or a "
            "cache answers. "
            "--admin tells which; alert on envoy_http_ext_proc_memory_failure_mode_allowed",
        )
    if late or away:
        return warn(
            check,
            f"of {len(good)} recalls {late} were out of time and {away} could not be made",
            "recall_seconds{stage} and store_up of the sidecar tell why",
        )
    return ok(check, f"memory was in each of {len(good)} answers")


async def leave_nothing(visit: GatewayVisit) -> Finding:
    """Forget the conversations with planted facts, through the memory API."""
    check = "leaves-nothing-behind"
    left = list[str]()
    for person, session in visit.kept:
        answer = await visit.gateway.call("DELETE", f"/v1/memory?session_id={session}", person.headers)
        if answer.status != _FORGOTTEN:
            left.append(f"{session} (HTTP {answer.status})")
    if not left:
        return ok(check, f"what {len(visit.kept)} conversations told is forgotten")
    return warn(
        check,
        f"the memory API cannot be reached beside the chats, so these conversations stay: {', '.join(left)}",
        "memory-extproc memory forget --session SESSION --as USER, for each of them",
    )


class Admin:
    """Envoy's admin page at *url*. Calls raise aiohttp.ClientError, ValueError or TimeoutError."""

    def __init__(self, session: aiohttp.ClientSession, url: str, named: str = "") -> None:
        self._session, self._url, self._named = session, url.rstrip("/"), named

    async def counters(self) -> dict[str, int]:
        return read_counters(await self._read("/stats?format=json&usedonly"))

    async def chains(self) -> list[FilterChain]:
        return read_chains(await self._read("/config_dump"), self._named)

    async def clusters(self) -> Mapping[str, Any]:
        return await self._read("/clusters?format=json")

    async def _read(self, path: str) -> Mapping[str, Any]:
        async with self._session.get(self._url + path) as got:
            got.raise_for_status()
            read = await got.json(content_type=None)
        if not isinstance(read, Mapping):
            raise ValueError("not what Envoy's admin page says")  # noqa: TRY004 - as JSON that cannot be read
        return read


async def _look(admin: Admin, before: Mapping[str, int] | None, body_bytes: int, found: Report) -> None:
    chains = await admin.chains()
    found(check_envoy.the_order(chains))
    found(check_envoy.the_modes(chains))
    found(check_envoy.the_limits(chains, body_bytes))
    found(check_envoy.the_timeouts(chains))
    found(check_envoy.reaches_memory(chains, await admin.clusters()))
    if before is not None:
        found(check_envoy.passed_by(before, await admin.counters()))
