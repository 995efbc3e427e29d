"""Checks of Envoy's configuration and counters, if its admin page is accessible."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from memory_extproc.doctor.gateway import Finding, fail, ok, unknown, warn

_WHO_ASKS = frozenset({"JwtAuthentication", "ExtAuthz", "ApiKeyAuth", "BasicAuth", "OAuth2"})
_GATEWAY_THAT_REBUILDS = "ai-gateway"  # Envoy AI Gateway's filter puts back the body that it saw
_IN_PIECES = "FULL_DUPLEX_STREAMED"  # chunks are forwarded to the sidecar at once: nothing is buffered
_SHORT = timedelta(minutes=1)
_BELOW = timedelta(milliseconds=160)  # the default recall.deadline, and a little


def the_order(chains: Sequence[FilterChain]) -> Finding:
    """Authentication must precede memory, and so must a router that sends signals."""
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
                check, f"{_draw(chain)}: {', '.join(late)} says who asks only after memory", "move it before memory"
            )
        rebuilding = [one.name for one in before if one.ext_proc and _rebuilds(one)]
        if rebuilding:
            return fail(
                check,
                f"{_draw(chain)}: {rebuilding[0]} stands before memory and sends the model the body that it saw",
                "memory must stand before it: the chart's gateway.type=envoy-ai-gateway writes it so",
            )
        others = [one.name for one in behind if one.ext_proc and not one.watches and not _rebuilds(one)]
        if others:
            return warn(
                check,
                f"{_draw(chain)}: {', '.join(others)} works after memory: its signals come too late, and it may "
                "replace the body",
                "let a router's ext_proc stand before memory",
            )
        if any(one.kind == "Decompressor" for one in before):
            return warn(
                check,
                f"{_draw(chain)}: a decompressor on answers and ext_proc hang together",
                "let it work on requests alone, or remove it: memory reads packed bodies itself",
            )
    return ok(check, "; ".join(_draw(chain) for chain in chains))


def the_modes(chains: Sequence[FilterChain]) -> Finding:
    check = "envoy-processing-mode"
    if not chains:
        return unknown(check, "no filter of memory found")
    in_pieces = False
    for chain in chains:
        mode = _mode(chain)
        # With two filters, the observing filter sees the responses.
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


def _mode(chain: FilterChain) -> Mapping[str, Any]:
    mode: Mapping[str, Any] = chain.ours.get("processing_mode", {})
    return mode


def the_limits(chains: Sequence[FilterChain], body_bytes: int) -> Finding:
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


def the_timeouts(chains: Sequence[FilterChain]) -> Finding:
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


def reaches_memory(chains: Sequence[FilterChain], clusters: Mapping[str, Any]) -> Finding:
    """Check by /clusters?format=json whether an address of the sidecar answers Envoy."""
    check = "envoy-reaches-memory"
    name = next((found for chain in chains if (found := _cluster(chain))), "")
    if not name:
        return unknown(check, "the filter of memory names no cluster" if chains else "no filter of memory found")
    status = next((one for one in _list(clusters.get("cluster_statuses")) if one.get("name") == name), None)
    hosts = _list(status.get("host_statuses")) if status else []
    if not hosts:
        return fail(
            check,
            f"cluster {name!r} " + ("has no address" if status else "is not known to Envoy"),
            "no pod of the sidecar is ready, its Service is not visible to the gateway (namespace, ReferenceGrant, "
            "exportTo), or its name does not resolve",
        )
    away = [one for one in hosts if _is_away(one)]
    if not away:
        return ok(check, f"{len(hosts)} of the sidecar's addresses, all of them healthy")
    failed = sum(_read_statistic(one, "cx_connect_fail") for one in away)
    told = f"{len(away)} of {len(hosts)} addresses of {name!r} do not answer Envoy, {failed} connections failed"
    if len(away) < len(hosts):
        return warn(check, told, "a pod that starts, stops or hangs: its log and its readiness tell")
    return fail(
        check,
        told,
        "TLS on one side alone (an Istio PeerAuthentication of mode STRICT wants gateway.istio.mesh: sidecar or "
        "ambient; `tls` of the sidecar wants a client certificate in Envoy), a NetworkPolicy or "
        "AuthorizationPolicy that shuts Envoy out, a wrong port, or a sidecar that is not there",
    )


def _cluster(chain: FilterChain) -> str:
    service = chain.ours.get("grpc_service")
    envoys = service.get("envoy_grpc") if isinstance(service, Mapping) else None
    return str(envoys.get("cluster_name", "")) if isinstance(envoys, Mapping) else ""


def _is_away(host: Mapping[str, Any]) -> bool:
    health = host.get("health_status")
    flags = health if isinstance(health, Mapping) else {}
    if any(flags.get(name) is True for name in ("failed_active_health_check", "failed_outlier_check")):
        return True
    # without health checks: every attempt failed
    tried = _read_statistic(host, "cx_connect_fail") + _read_statistic(host, "rq_error")
    return flags.get("eds_health_status") == "UNHEALTHY" or (tried > 0 and not _read_statistic(host, "rq_success"))


def _read_statistic(host: Mapping[str, Any], name: str) -> int:
    """Read a statistic of *host*. Envoy writes 64-bit numbers as text and leaves zeros out."""
    value = next((one.get("value", 0) for one in _list(host.get("stats")) if one.get("name") == name), 0)
    return int(value) if str(value).isdecimal() else 0


def passed_by(before: Mapping[str, int], after: Mapping[str, int]) -> Finding:
    """Envoy's counters during the visit."""
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


def _draw(chain: FilterChain) -> str:
    return " → ".join(
        f"[{one.name}]" if place == chain.memory else one.name for place, one in enumerate(chain.filters)
    )


# Envoy's admin page: filters in order, limits, and requests that bypassed memory.

_EXT_PROC = "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"
_MANAGER = "HttpConnectionManager"
_DURATION = re.compile(r"^(\d+(?:\.\d+)?)s$")
_DEFAULT_BUFFER = 1024 * 1024  # listener.proto: per_connection_buffer_limit_bytes
DEFAULT_ROUTE_TIMEOUT = timedelta(seconds=15)  # route_components.proto: RouteAction.timeout
DEFAULT_MESSAGE_TIMEOUT = timedelta(milliseconds=200)  # ext_proc.proto
_COUNTED = (
    "failure_mode_allowed",
    "message_timeouts",
    "streams_failed",
    "streams_started",
    "rejected_header_mutations",
)


@dataclass(frozen=True, slots=True)
class HttpFilter:
    name: str
    kind: str  # the last part of its message's type: "JwtAuthn" and the like
    config: Mapping[str, Any] = field(repr=False)

    @property
    def ext_proc(self) -> bool:
        return self.kind == "ExternalProcessor"

    @property
    def watches(self) -> bool:
        """Whether it only observes, and may be anywhere: a memory filter for responses, or an unrelated filter."""
        return self.ext_proc and self.config.get("observability_mode") is True


@dataclass(frozen=True, slots=True)
class FilterChain:
    """A listener's filter chain with memory. *memory*: its index in *filters*."""

    listener: str
    buffer_bytes: int
    filters: Sequence[HttpFilter]
    memory: int
    route_timeouts: Sequence[timedelta]  # of its routes to a cluster; zero: none

    @property
    def ours(self) -> Mapping[str, Any]:
        return self.filters[self.memory].config

    @property
    def observer(self) -> HttpFilter | None:
        """The observing memory filter, if there are two."""
        return next((one for one in self.filters if one.watches and "memory" in _words(one)), None)


def read_chains(dump: Mapping[str, Any], named: str = "") -> list[FilterChain]:
    """All chains of a /config_dump with memory: the ext_proc filter *named*.

    Without a name, the filter with "memory" in its name, stat_prefix or cluster. Unknown parts are skipped."""
    chains = list[FilterChain]()
    routes = _routes(dump)
    for listener in _objects(dump, lambda found: "filter_chains" in found and "address" in found):
        for manager in _objects(listener, lambda found: str(found.get("@type", "")).endswith(_MANAGER)):
            filters = [_filter(one) for one in _list(manager.get("http_filters"))]
            place = _place(filters, named)
            if place is None:
                continue
            inline = manager.get("route_config")
            table = inline if isinstance(inline, Mapping) else routes.get(_route_name(manager), {})
            limit = listener.get("per_connection_buffer_limit_bytes", _DEFAULT_BUFFER)
            chains.append(
                FilterChain(
                    str(listener.get("name", "")),
                    limit if isinstance(limit, int) else _DEFAULT_BUFFER,
                    filters,
                    place,
                    [_timeout(one) for one in _objects(table, _to_a_cluster)],
                )
            )
    return chains


def read_counters(stats: Mapping[str, Any]) -> dict[str, int]:
    """The counters of all ext_proc filters with "memory" in their prefix, or of all if none has, by their last
    component.

    From /stats?format=json. Includes `rq_overflow` of every cluster with "memory" in its name."""
    pairs = [(str(one.get("name", "")), one.get("value")) for one in _list(stats.get("stats"))]
    ext_proc = [(name, value) for name, value in pairs if ".ext_proc." in name]
    ours = [pair for pair in ext_proc if "memory" in pair[0].partition(".ext_proc.")[2]] or ext_proc
    ours += [
        ("rq_overflow", value)
        for name, value in pairs
        if name.endswith("upstream_rq_pending_overflow") and "memory" in name
    ]
    counters = dict.fromkeys((*_COUNTED, "rq_overflow"), 0)
    for name, value in ours:
        word = name.rpartition(".")[2]
        if word in counters and isinstance(value, int):
            counters[word] += value
    return counters


def seconds(text: object, otherwise: timedelta) -> timedelta:
    """Parse a duration of protobuf's JSON; *otherwise* if absent."""
    match = _DURATION.match(text) if isinstance(text, str) else None
    return timedelta(seconds=float(match[1])) if match else otherwise


def _filter(one: Mapping[str, Any]) -> HttpFilter:
    config = one.get("typed_config")
    config = config if isinstance(config, Mapping) else {}
    kind = str(config.get("@type", "")).rpartition("/")[2]
    return HttpFilter(str(one.get("name", "")), kind.rpartition(".")[2], config)


def _place(filters: Sequence[HttpFilter], named: str) -> int | None:
    candidates = [place for place, one in enumerate(filters) if one.ext_proc and not one.watches]
    if named:
        return next((place for place in candidates if filters[place].name == named), None)
    telling = [place for place in candidates if "memory" in _words(filters[place])]
    return next(iter(telling), candidates[0] if len(candidates) == 1 else None)


def _words(one: HttpFilter) -> str:
    service = json.dumps(one.config.get("grpc_service", {}))
    return f"{one.name} {one.config.get('stat_prefix', '')} {service}".lower()


def _routes(dump: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    found = _objects(dump, lambda one: "virtual_hosts" in one and "name" in one)
    return {str(one["name"]): one for one in found}


def _route_name(manager: Mapping[str, Any]) -> str:
    rds = manager.get("rds")
    return str(rds.get("route_config_name", "")) if isinstance(rds, Mapping) else ""


def _to_a_cluster(found: Mapping[str, Any]) -> bool:
    action = found.get("route")
    return isinstance(action, Mapping) and bool({"cluster", "weighted_clusters", "cluster_header"} & action.keys())


def _timeout(route: Mapping[str, Any]) -> timedelta:
    return seconds(route["route"].get("timeout"), DEFAULT_ROUTE_TIMEOUT)


def _objects(value: Any, wanted: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every *wanted* object in *value*, itself included, without descending into it."""
    if isinstance(value, Mapping):
        if wanted(value):
            yield value
            return
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _objects(one, wanted)


def _list(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
