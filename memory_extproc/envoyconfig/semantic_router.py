"""Envoy with the vLLM semantic router's ext_proc in front of memory, and the plugin blocks for its own file.

Read from the router's source of August 2026, configuration version v0.3: it sets no signal on the request by
itself, and a decision's `header_mutation` plugin does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memory_extproc.envoyconfig.options import EnvoyOptions
from memory_extproc.errors import ConfigurationError

Tree = dict[str, Any]
ROUTER = "semantic_router"  # the cluster and the filter
DECISION_HEADER = "x-memory-decision"  # tells rules here which decision was taken
FACT_HEADER = "x-memory-signal-fact"
_FACTS = {"needs_fact_check": "true", "no_fact_check_needed": "false"}
_EXT_PROC = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"
_MUTATION = "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation"


def put_router_in_front(tree: Tree, options: EnvoyOptions, host: str, port: int) -> Tree:
    """Put the router's filter at *host*:*port* before the memory filter of the bootstrap *tree*."""
    manager = tree["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    filters = manager["http_filters"]
    at = next(at for at, each in enumerate(filters) if each["name"] == "memory")
    manager["http_filters"] = [*filters[:at], *_cache_bypass(options), _router_filter(), *filters[at:]]
    tree["static_resources"]["clusters"].append(_cluster(host, port))
    return tree


def _cache_bypass(options: EnvoyOptions) -> Iterator[Tree]:
    """Send identified callers past the router's cache, whose key is the question without the caller."""
    if not options.user_header:
        return
    bypass = {
        "header": {"key": "x-vsr-cache-control", "value": "bypass"},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }
    identified = {
        "input": {
            "name": "caller",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput",
                "header_name": options.user_header,
            },
        },
        "value_match": {"safe_regex": {"google_re2": {}, "regex": ".+"}},
    }
    skip = {
        "name": "skip",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.common.matcher.action.v3.SkipFilter"
        },
    }
    matcher = {"predicate": {"not_matcher": {"single_predicate": identified}}, "on_match": {"action": skip}}
    yield {
        "name": "memory_bypass_cache",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.common.matching.v3.ExtensionWithMatcher",
            "extension_config": {
                "name": "envoy.filters.http.header_mutation",
                "typed_config": {"@type": _MUTATION, "mutations": {"request_mutations": [{"append": bypass}]}},
            },
            "xds_matcher": {"matcher_list": {"matchers": [matcher]}},
        },
    }


def _router_filter() -> Tree:
    """As the router's own documentation has it, but for failing open."""
    return {
        "name": ROUTER,
        "typed_config": {
            "@type": _EXT_PROC,
            "grpc_service": {"envoy_grpc": {"cluster_name": ROUTER}},
            "allow_mode_override": True,
            "failure_mode_allow": True,
            "processing_mode": {
                "request_header_mode": "SEND",
                "response_header_mode": "SEND",
                "request_body_mode": "BUFFERED",
                "response_body_mode": "BUFFERED",
            },
            "message_timeout": "300s",
        },
    }


def _cluster(host: str, port: int) -> Tree:
    address = {"socket_address": {"address": host, "port_value": port}}
    options = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {
        "name": ROUTER,
        "type": "STRICT_DNS",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": options,
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
        "load_assignment": {
            "cluster_name": ROUTER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }


def signal_plugins(tree: Any) -> Tree:
    """Make a `header_mutation` plugin for each decision of the router's file *tree*, to be merged into that file.

    The plugin sends memory the decision's name and the result of its fact_check condition. No other value of the
    file is in the output. ConfigurationError if *tree* is no such file."""
    routing = _mapping(_mapping(tree, "the file").get("routing"), "routing")
    listed = routing.get("decisions", _mapping(tree, "the file").get("decisions"))
    decisions = _list(listed, "routing.decisions")
    if not decisions:
        raise ConfigurationError(["routing.decisions: expected decisions, of configuration version v0.3"])
    found = []
    for number, each in enumerate(decisions):
        at = f"routing.decisions[{number}]"
        decision = _mapping(each, at)
        name = decision.get("name")
        if not isinstance(name, str) or not name.isprintable() or not name:
            raise ConfigurationError([f"{at}.name: expected a printable name"])
        headers = [{"name": DECISION_HEADER, "value": name}]
        if fact := _fact(decision, at):
            headers.append({"name": FACT_HEADER, "value": fact})
        plugin = {"type": "header_mutation", "configuration": {"update": headers}}
        found.append({"name": name, "plugins": [plugin]})
    return {"routing": {"decisions": found}}


def _fact(decision: Mapping[str, Any], at: str) -> str:
    """The fact check of requests that take *decision*: "true" or "false" if all its rules agree, else ""."""
    return _fact_of_rules(_mapping(decision.get("rules"), f"{at}.rules"), f"{at}.rules")


def _fact_of_rules(rules: Mapping[str, Any], at: str) -> str:
    if rules.get("type") == "fact_check":
        return _FACTS.get(str(rules.get("name")), "")
    conditions = _list(rules.get("conditions"), f"{at}.conditions")
    said = [_fact_of_rules(_mapping(each, f"{at}.conditions"), at) for each in conditions]
    operator = str(rules.get("operator", "AND")).upper()
    if operator == "AND":
        said = [each for each in said if each]
    return said[0] if operator in {"AND", "OR"} and len(set(said)) == 1 else ""


def _mapping(value: Any, at: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigurationError([f"{at}: expected a mapping"])
    return value


def _list(value: Any, at: str) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ConfigurationError([f"{at}: expected a list"])
    return value
