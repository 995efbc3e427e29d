"""Checks of authentication: requests reach a model and memory, with the right identity, and cannot be forged."""

from __future__ import annotations

import json

from memory_extproc.doctor.gateway import Finding, GatewayResponse, GatewayVisit, fail, ok, unknown, warn

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
