"""What Envoy's own configuration and counters say, for whoever may read its admin page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from memory_extproc.doctor.envoy_admin import DEFAULT_MESSAGE_TIMEOUT, Chain, HttpFilter, seconds
from memory_extproc.doctor.finding import Finding, fail, ok, unknown, warn

_WHO_ASKS = frozenset({"JwtAuthentication", "ExtAuthz", "ApiKeyAuth", "BasicAuth", "OAuth2"})
_GATEWAY_THAT_REBUILDS = "ai-gateway"  # Envoy AI Gateway's filter puts back the body that it saw
_IN_PIECES = "FULL_DUPLEX_STREAMED"  # what comes goes on to the sidecar at once: no buffer has to hold it
_SHORT = timedelta(minutes=1)
_BELOW = timedelta(milliseconds=160)  # the default recall.deadline, and a little


def the_order(chains: Sequence[Chain]) -> Finding:
    """Who asks must be known before memory; a router that sends signals before it, too."""
    check = "envoy-filter-order"
    if not chains:
        return fail(
            check,
            "no ext_proc filter of memory in any listener",
            "it was never added, or the gateway did not accept its policy; if it has another name: --filter NAME",
        )
    for chain in chains:
        before, behind = chain.filters[: chain.memory], chain.filters[chain.memory + 1 :]
        late = [one.name for one in behind if one.kind in _WHO_ASKS]
        if late:
            return fail(
                check,
                f"{_drawn(chain)}: {', '.join(late)} says who asks only after memory",
                "move it before memory",
            )
        rebuilding = [one.name for one in before if one.ext_proc and _rebuilds(one)]
        if rebuilding:
            return fail(
                check,
                f"{_drawn(chain)}: {rebuilding[0]} stands before memory and sends the model the body that it saw",
                "memory must stand before it: the chart's gateway.type=envoy-ai-gateway writes it so",
            )
        others = [one.name for one in behind if one.ext_proc and not one.watches and not _rebuilds(one)]
        if others:
            return warn(
                check,
                f"{_drawn(chain)}: {', '.join(others)} works after memory: its signals come too late, and it may "
                "replace the body",
                "let a router's ext_proc stand before memory",
            )
        if any(one.kind == "Decompressor" for one in before):
            return warn(
                check,
                f"{_drawn(chain)}: a decompressor on answers and ext_proc hang together",
                "let it work on requests alone, or remove it: memory reads packed bodies itself",
            )
    return ok(check, "; ".join(_drawn(chain) for chain in chains))


def the_modes(chains: Sequence[Chain]) -> Finding:
    check = "envoy-processing-mode"
    if not chains:
        return unknown(check, "no filter of memory found")
    in_pieces = False
    for chain in chains:
        mode = _mode(chain)
        # With two filters the one that watches sees the answers.
        answers = mode if chain.observer is None else chain.observer.config.get("processing_mode", {})
        request, response = mode.get("request_body_mode", "NONE"), answers.get("response_body_mode", "NONE")
        if request not in {"BUFFERED", _IN_PIECES}:
            return fail(check, f"request_body_mode is {request}", "request_body_mode: BUFFERED")
        if response not in {"STREAMED", _IN_PIECES}:
            return fail(
                check, f"response_body_mode is {response}: nothing is learned, or streams are held back",
                "response_body_mode: STREAMED",
            )  # fmt: skip
        if not chain.ours.get("failure_mode_allow") and request == "BUFFERED":
            return warn(
                check,
                "failure_mode_allow is off: without the sidecar every request fails",
                "failure_mode_allow: true",
            )
        in_pieces = in_pieces or _IN_PIECES in (request, response)
    if in_pieces:
        return ok(
            check,
            "bodies come in pieces that Envoy keeps no copy of: what is under way when the sidecar dies fails, and "
            "only health checks let requests go on without it; BUFFERED and STREAMED have neither",
        )
    return ok(check, "bodies are shown as they should be, and requests go on without the sidecar")


def _mode(chain: Chain) -> Mapping[str, Any]:
    mode: Mapping[str, Any] = chain.ours.get("processing_mode", {})
    return mode


def the_limits(chains: Sequence[Chain], body_bytes: int) -> Finding:
    check = "envoy-buffer-limit"
    if not chains:
        return unknown(check, "no filter of memory found")
    buffering = [chain for chain in chains if _mode(chain).get("request_body_mode") != _IN_PIECES]
    if not buffering:
        return ok(check, "bodies come in pieces, of whatever size")
    least = min(buffering, key=lambda chain: chain.buffer_bytes)
    buffered = any(one.kind == "Buffer" for one in least.filters[: least.memory])
    if least.buffer_bytes < body_bytes and not buffered:
        return fail(
            check,
            f"listener {least.listener!r} buffers {least.buffer_bytes // 1024} KiB, and memory takes bodies of "
            f"{body_bytes // 1024} KiB: larger ones are refused with 413",
            "raise per_connection_buffer_limit_bytes (Envoy Gateway: ClientTrafficPolicy connection.bufferLimit)",
        )
    return ok(check, f"bodies of {body_bytes // 1024} KiB fit")


def the_timeouts(chains: Sequence[Chain]) -> Finding:
    check = "envoy-timeouts"
    if not chains:
        return unknown(check, "no filter of memory found")
    for chain in chains:
        waits = seconds(chain.ours.get("message_timeout"), DEFAULT_MESSAGE_TIMEOUT)
        if waits < _BELOW:
            return fail(
                check,
                f"message_timeout is {waits.total_seconds():g} s: Envoy stops waiting before recall's deadline",
                "message_timeout of the filter above recall.deadline, both in the sidecar's configuration "
                "and in Envoy",
            )
        short = [timeout for timeout in chain.route_timeouts if timedelta() < timeout < _SHORT]
        if short:
            return warn(
                check,
                f"a route ends after {min(short).total_seconds():g} s, streamed answers included",
                "timeout: 0s on routes to models, with a stream_idle_timeout",
            )
    return ok(check, "Envoy waits longer than recall takes, and routes leave models time")


def passed_by(before: Mapping[str, int], after: Mapping[str, int]) -> Finding:
    """What Envoy counted during the visit."""
    check = "envoy-passed-by"
    grown = {name: after[name] - before[name] for name in after}
    told = ", ".join(f"{name} +{count}" for name, count in grown.items() if count)
    if grown["streams_started"] == 0:
        return fail(
            check, "Envoy asked memory for none of our requests", "the filter is off on this route, or not there"
        )
    if grown["message_timeouts"]:
        return fail(
            check,
            told,
            "the sidecar answers later than message_timeout: more CPU, or a message_timeout above recall.deadline",
        )
    if grown["rq_overflow"]:
        return fail(check, told, "the circuit breaker of the sidecar's cluster is full: raise max_requests")
    if grown["failure_mode_allowed"] or grown["streams_failed"]:
        return fail(
            check,
            told,
            "Envoy cannot reach the sidecar: its address, HTTP/2, TLS on both sides, its health and its pods",
        )
    if grown["rejected_header_mutations"]:
        return warn(
            check, told, "the filter's mutation_rules refuse headers of memory: let x-memory-* be set and removed"
        )
    return ok(check, f"every request was shown to memory ({told})")


def _rebuilds(one: HttpFilter) -> bool:
    return _GATEWAY_THAT_REBUILDS in f"{one.name} {one.config.get('grpc_service', '')}".lower().replace(
        "aigateway", _GATEWAY_THAT_REBUILDS
    )


def _drawn(chain: Chain) -> str:
    return " → ".join(
        f"[{one.name}]" if place == chain.memory else one.name for place, one in enumerate(chain.filters)
    )
