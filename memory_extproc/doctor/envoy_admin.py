"""What Envoy's admin page tells: the filters in their order, limits, and what passed memory by."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

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
        """It changes nothing, so it may stand anywhere: the first of two filters of memory, or somebody else's."""
        return self.ext_proc and self.config.get("observability_mode") is True


@dataclass(frozen=True, slots=True)
class Chain:
    """One listener's chain that memory stands in. *memory* is its place in *filters*."""

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
        """The filter that watches for memory, where there are two."""
        return next((one for one in self.filters if one.watches and "memory" in _words(one)), None)


def read_chains(dump: Mapping[str, Any], named: str = "") -> list[Chain]:
    """Every chain of a /config_dump that memory stands in: the ext_proc filter called *named*, or else the one
    that
    has memory in its name, its stat_prefix or its cluster. Parts that are not as Envoy writes them are passed
    over."""
    chains = list[Chain]()
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
                Chain(
                    str(listener.get("name", "")),
                    limit if isinstance(limit, int) else _DEFAULT_BUFFER,
                    filters,
                    place,
                    [_timeout(one) for one in _objects(table, _to_a_cluster)],
                )
            )
    return chains


def read_counters(stats: Mapping[str, Any]) -> dict[str, int]:
    """The counters of every ext_proc filter that has memory in its prefix, or of all if none has, by their
    last word;
    from /stats?format=json. Also `rq_overflow`, of every cluster that has memory in its name."""
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
    """A duration as protobuf's JSON writes it; *otherwise* for none."""
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
    """Every object in *value* that is *wanted*, itself included; not what is inside of one."""
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
