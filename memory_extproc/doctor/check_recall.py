"""Checks of recall: memories are found by their owner only, and reach the model."""

from __future__ import annotations

import json
from collections.abc import Mapping

from memory_extproc.doctor.gateway import Finding, GatewayResponse, GatewayVisit, fail, ok, unknown, warn

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
