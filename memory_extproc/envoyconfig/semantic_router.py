"""Envoy with the vLLM semantic router's ext_proc in front of memory, and the plugin blocks for its own file.

Read from the router's source of August 2026, configuration version v0.3: it sets no signal on the request by
itself, and a decision's `header_mutation` plugin does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memory_extproc.envoyconfig.options import EnvoyOptions
from memory_extproc.errors import ConfigurationError
from memory_extproc.settings.semantic_router import DECISION_HEADER, as_list, as_mapping, decisions_of, router_file

Tree = dict[str, Any]
ROUTER = "semantic_router"  # the cluster and the filter
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
    if not options.settings.identity.user_header:
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
                "header_name": options.settings.identity.user_header,
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
    decisions = decisions_of(router_file(tree))
    if not decisions:
        raise ConfigurationError(["routing.decisions: expected decisions, here or in recipes, of version v0.3"])
    found: dict[str, list[Tree]] = {}
    for each in decisions:
        headers = [{"name": DECISION_HEADER, "value": each.header}]
        if fact := _fact_of_rules(as_mapping(each.body.get("rules"), f"{each.at}.rules"), f"{each.at}.rules"):
            headers.append({"name": FACT_HEADER, "value": fact})
        plugin = {"type": "header_mutation", "configuration": {"update": headers}}
        found.setdefault(each.recipe, []).append({"name": each.name, "plugins": [plugin]})
    written = {recipe: {"routing": {"decisions": plugins}} for recipe, plugins in found.items()}
    own = written.pop("", {})
    return {**own, "recipes": [{"name": recipe, **one} for recipe, one in written.items()]} if written else own


def _fact_of_rules(rules: Mapping[str, Any], at: str) -> str:
    """The fact check of requests that fulfil *rules*: "true" or "false" if all of them agree, else ""."""
    if rules.get("type") == "fact_check":
        return _FACTS.get(str(rules.get("name")), "")
    conditions = as_list(rules.get("conditions"), f"{at}.conditions")
    said = [_fact_of_rules(as_mapping(each, f"{at}.conditions"), at) for each in conditions]
    operator = str(rules.get("operator", "AND")).upper()
    if operator == "AND":
        said = [each for each in said if each]
    return said[0] if operator in {"AND", "OR"} and len(set(said)) == 1 else ""
