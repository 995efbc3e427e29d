"""Manifests with the same filter: alone, for Envoy Gateway, for Istio; and their YAML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any

import yaml

from memory_extproc.envoyconfig.bootstrap import (
    api_cluster,
    bootstrap,
    identity_filters,
    memory_filter,
    observer_filters,
    plain,
    rest_routes,
    sidecar_cluster,
)
from memory_extproc.envoyconfig.options import SIDECAR, Bodies, EnvoyOptions, IdentityMode
from memory_extproc.envoyconfig.semantic_router import put_router_in_front
from memory_extproc.errors import ConfigurationError
from memory_extproc.extproc.observer import HANDED
from memory_extproc.request.admission import ARRIVED, METADATA, ROUTE

Tree = dict[str, Any]


class Shape(StrEnum):
    BOOTSTRAP = "bootstrap"
    FILTER = "filter"
    ENVOY_GATEWAY = "envoy-gateway"
    ISTIO = "istio"
    SEMANTIC_ROUTER = "semantic-router"


def render(options: EnvoyOptions, shape: Shape, *, gateway: str = "llm", namespace: str = "default") -> str:
    """Render YAML with a header that states its assumptions.

    *gateway* and *namespace* name the Gateway in the Kubernetes shapes, where the sidecar is
    `service.namespace:port`. ConfigurationError for options that a shape does not support."""
    writers: Mapping[Shape, Callable[[], list[Tree]]] = {
        Shape.BOOTSTRAP: lambda: [bootstrap(options)],
        Shape.FILTER: lambda: [_filter(options)],
        Shape.ENVOY_GATEWAY: lambda: _envoy_gateway(options, gateway, namespace),
        Shape.ISTIO: lambda: _istio(options, gateway, namespace),
        Shape.SEMANTIC_ROUTER: lambda: [_behind_router(options)],
    }
    documents = (yaml.safe_dump(tree, sort_keys=False, width=116) for tree in writers[shape]())
    return _head(options, shape) + "---\n".join(documents)


def _behind_router(options: EnvoyOptions) -> Tree:
    if options.router is None:
        raise ConfigurationError(["--router: --shape semantic-router needs the address of the router's ext_proc"])
    return put_router_in_front(bootstrap(options), options, *options.router)


_TRUSTED = """\
# ############################################################################################################
# THE CLIENT NAMES ITSELF: whoever can send a request here can send {headers} and so
# read and write that person's memories. Right for a demo on one machine, or behind a gateway that sets these
# headers itself and lets nobody else in. Otherwise: --identity strip, with your own filter, or --identity jwt.
# ############################################################################################################
"""
_STRIPPED = """\
# Identity: {headers} from clients are removed. Put the filter that knows who
# asks (ext_authz, jwt_authn, oauth2) between identity_strip and memory; without one nobody has a memory.
"""
_VERIFIED = """\
# Identity: {headers} from clients are removed, and set anew from a verified token.
"""
_NOTES = {IdentityMode.TRUST: _TRUSTED, IdentityMode.STRIP: _STRIPPED, IdentityMode.JWT: _VERIFIED}
_SHAPED = {
    Shape.BOOTSTRAP: "",
    Shape.SEMANTIC_ROUTER: "# The semantic router's ext_proc stands before memory; switch its own memory off.\n",
    Shape.FILTER: "# Put http_filters before envoy.filters.http.router, clusters among yours, routes before\n"
    "# yours, and the listener's per_connection_buffer_limit_bytes at the value below: what is above it, Envoy\n"
    "# answers with 413.\n",
    Shape.ENVOY_GATEWAY: "# Look at the policies' status: an invalid one is skipped, and with it all memory.\n"
    "# A sidecar in another namespace than the Gateway needs a ReferenceGrant there.\n"
    "# The memory API is an upstream like any other: an HTTPRoute leads /v1/memory to its Service.\n",
    Shape.ISTIO: "# For a gateway made by Istio; the sidecar's Service port must be named grpc or http2.\n",
}


def _head(options: EnvoyOptions, shape: Shape) -> str:
    headers = " and ".join(options.identity_headers) or "identity headers"
    return (
        f"# Written by `memory-extproc envoy-config --shape {shape}` for the sidecar at {options.sidecar}.\n"
        + _NOTES[options.identity].format(headers=headers)
        + _SHAPED[shape]
    )


def _filter(options: EnvoyOptions) -> Tree:
    return {
        "per_connection_buffer_limit_bytes": options.buffer_bytes,
        "http_filters": [
            plain(each) for each in (*observer_filters(options), *identity_filters(options), memory_filter(options))
        ],
        **_rest_parts(options),
    }


def _rest_parts(options: EnvoyOptions) -> Tree:
    if options.rest is None:
        return {"clusters": [plain(sidecar_cluster(options))]}
    clusters = (sidecar_cluster(options), api_cluster(options, options.rest))
    routes = [plain(route) for route in rest_routes(options)]
    return {"routes": routes, "clusters": [plain(each) for each in clusters]}


def _service(options: EnvoyOptions) -> tuple[str, str, int]:
    """(name, namespace, port) of the sidecar's Service."""
    host, _, port = options.sidecar.rpartition(":")
    name, dot, rest = host.partition(".")
    if not dot or host.replace(".", "").isdecimal() or host.startswith("unix"):
        raise ConfigurationError([f"--sidecar: {options.sidecar} is no Service: expected name.namespace:port"])
    return name, rest.split(".")[0], int(port)


def _manifest(kind: str, version: str, name: str, namespace: str, spec: Tree) -> Tree:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


_EG = "gateway.envoyproxy.io/v1alpha1"


def _envoy_gateway(options: EnvoyOptions, gateway: str, namespace: str) -> list[Tree]:
    if options.bodies is Bodies.FULL_DUPLEX:
        why = "Envoy Gateway does not let FullDuplexStreamed fail open: without the sidecar no request would pass"
        raise ConfigurationError([f"--bodies: {why}. It offers Buffered: leave this at buffered"])
    target = {"targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": gateway}]}
    section = options.settings.envoy
    client: Tree = {
        **target,
        "connection": {"bufferLimit": options.buffer_bytes},
        "timeout": {"http": {"streamIdleTimeout": _go(section.idle_timeout)}},
    }
    if options.identity is not IdentityMode.TRUST and options.identity_headers:
        client["headers"] = {"earlyRequestHeaders": {"remove": list(options.identity_headers)}}
    patience = {
        "http": {"requestTimeout": _go(section.route_timeout), "streamIdleTimeout": _go(section.idle_timeout)}
    }
    return [
        _manifest(
            "EnvoyExtensionPolicy", _EG, "memory-extproc", namespace, {**target, "extProc": _eg_processors(options)}
        ),
        _manifest("ClientTrafficPolicy", _EG, "memory-extproc", namespace, client),
        _manifest(
            "BackendTrafficPolicy",
            _EG,
            "memory-extproc",
            namespace,
            {**target, "timeout": patience, "circuitBreaker": _eg_breaker(options.settings.limits.streams)},
        ),
        *_eg_security(options, target, namespace),
    ]


def _eg_processors(options: EnvoyOptions) -> list[Tree]:
    """The filters in order: the observing filter before the modifying filter."""
    name, where, port = _service(options)
    backend = {"name": name, "namespace": where, "port": port}
    processor: Tree = {
        "backendRefs": [backend],
        "failOpen": True,
        "messageTimeout": _go(options.settings.message_timeout),
        "processingMode": {
            # Not xds.cluster_name: its schema accepts xds.route_… only, and would reject the policy.
            "request": {"body": "Buffered", "attributes": [ROUTE, ARRIVED]},
            "response": {"body": "Streamed"},
        },
        "backendSettings": {
            "circuitBreaker": _eg_breaker(options.settings.limits.streams),
            "healthCheck": {
                "panicThreshold": 0,
                "active": {
                    "type": "GRPC",
                    "grpc": {"service": "readiness"},
                    "interval": _go(options.settings.envoy.health_interval),
                    "timeout": "1s",
                    "unhealthyThreshold": 1,
                    "healthyThreshold": 1,
                },
            },
            "retry": {"numRetries": 1, "retryOn": {"triggers": ["unavailable", "reset", "connect-failure"]}},
        },
    }
    seen = [*options.forwarded_namespaces, METADATA]
    processor["metadata"] = {"writableNamespaces": [METADATA], "accessibleNamespaces": seen}
    if not options.two_filters:
        return [processor]
    processor["processingMode"]["response"] = {}
    processor["metadata"]["writableNamespaces"].append(HANDED)
    watching = {
        "backendRefs": [backend],
        "failOpen": True,
        "shadowMode": True,
        "processingMode": {"request": {"body": "Streamed"}, "response": {"body": "Streamed"}},
        "metadata": {"accessibleNamespaces": [HANDED]},
        "backendSettings": processor["backendSettings"],
    }
    return [watching, processor]


def _eg_breaker(streams: int) -> Tree:
    return {"maxConnections": streams, "maxPendingRequests": streams, "maxParallelRequests": streams}


def _eg_security(options: EnvoyOptions, target: Tree, namespace: str) -> list[Tree]:
    if options.identity is not IdentityMode.JWT or options.verified is None:
        return []
    verified = options.verified
    provider = {
        "name": "caller",
        "issuer": verified.issuer,
        "audiences": [verified.audience],
        "remoteJWKS": {"uri": _remote_keys(options)},
        "claimToHeaders": [{"header": header, "claim": claim} for header, claim in options.claimed_headers],
    }
    return [
        _manifest("SecurityPolicy", _EG, "memory-extproc", namespace, {**target, "jwt": {"providers": [provider]}})
    ]


def _remote_keys(options: EnvoyOptions) -> str:
    if options.verified is None or not options.verified.jwks_url:
        raise ConfigurationError(["--jwks-url: this shape cannot name a file; the keys must be fetched"])
    return options.verified.jwks_url


def _go(duration: timedelta) -> str:
    """Format a duration for Kubernetes: whole milliseconds or seconds."""
    milliseconds = round(duration / timedelta(milliseconds=1))
    return f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"


_ROUTER = {"filterChain": {"filter": {"name": "envoy.filters.network.http_connection_manager"}}}
_BEFORE_ROUTER = {
    "filterChain": {
        "filter": {
            "name": "envoy.filters.network.http_connection_manager",
            "subFilter": {"name": "envoy.filters.http.router"},
        }
    }
}
# Settings missing in Istio's own cluster for the Service; Istio manages the rest (addresses, TLS, HTTP/2).
_CLUSTER_PATCHED = ("circuit_breakers", "health_checks", "common_lb_config", "per_connection_buffer_limit_bytes")


def _istio(options: EnvoyOptions, gateway: str, namespace: str) -> list[Tree]:
    name, where, port = _service(options)
    host = f"{name}.{where}.svc.cluster.local"
    memory = plain(memory_filter(options))
    watching = [plain(each) for each in observer_filters(options)]
    for each in (memory, *watching):
        each["typed_config"]["grpc_service"]["envoy_grpc"]["cluster_name"] = f"outbound|{port}||{host}"
    cluster = {key: value for key, value in plain(sidecar_cluster(options)).items() if key in _CLUSTER_PATCHED}
    # The first of identity_filters strips headers; Istio's RequestAuthentication verifies tokens.
    stripped = [plain(each) for each in identity_filters(options)[:1]]
    patches = [
        # The later of two patches with INSERT_FIRST comes first: the observer before the stripping.
        *(_patch("HTTP_FILTER", {"listener": _ROUTER}, "INSERT_FIRST", each) for each in (*stripped, *watching)),
        _patch("HTTP_FILTER", {"listener": _BEFORE_ROUTER}, "INSERT_BEFORE", memory),
        *_istio_rest(options, where=host),
        _patch("LISTENER", {}, "MERGE", {"per_connection_buffer_limit_bytes": options.buffer_bytes}),
        _patch("CLUSTER", {"cluster": {"service": host, "portNumber": port}}, "MERGE", cluster),
    ]
    selected = {"labels": {"gateway.networking.k8s.io/gateway-name": gateway}}
    spec = {"workloadSelector": selected, "configPatches": patches}
    documents = [
        _manifest("EnvoyFilter", "networking.istio.io/v1alpha3", SIDECAR.replace("_", "-"), namespace, spec)
    ]
    if options.identity is IdentityMode.JWT and options.verified is not None:
        rule = {
            "issuer": options.verified.issuer,
            "audiences": [options.verified.audience],
            "jwksUri": _remote_keys(options),
            "forwardOriginalToken": True,
            "outputClaimToHeaders": [
                {"header": header, "claim": claim} for header, claim in options.claimed_headers
            ],
        }
        chosen = {"matchLabels": selected["labels"]}
        documents.append(
            _manifest(
                "RequestAuthentication",
                "security.istio.io/v1",
                "memory-extproc",
                namespace,
                {"selector": chosen, "jwtRules": [rule]},
            )
        )
    return documents


def _istio_rest(options: EnvoyOptions, *, where: str) -> list[Tree]:
    """The memory API's routes, before all other routes of the gateway, on every host."""
    if options.rest is None:
        return []
    routes = [plain(route) for route in rest_routes(options)]
    for route in routes:
        route["route"]["cluster"] = f"outbound|{options.rest.address.rpartition(':')[2]}||{where}"
    return [_patch("HTTP_ROUTE", {}, "INSERT_FIRST", route) for route in routes]


def _patch(to: str, match: Tree, operation: str, value: Tree) -> Tree:
    return {
        "applyTo": to,
        "match": {"context": "GATEWAY", **match},
        "patch": {"operation": operation, "value": value},
    }
