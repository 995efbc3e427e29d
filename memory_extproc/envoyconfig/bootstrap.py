"""A complete Envoy bootstrap for this sidecar, built from Envoy's own typed messages.

Comments give the reason for each value; most were found by watching a real Envoy fail without them. Imported only
by the command that writes the configuration: the messages take a third of a second to import."""

from __future__ import annotations

import ipaddress
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import betterproto2
import envoy_data_plane.envoy.config.accesslog.v3 as accesslog_v3
import envoy_data_plane.envoy.config.bootstrap.v3 as bootstrap_v3
import envoy_data_plane.envoy.config.cluster.v3 as cluster_v3
import envoy_data_plane.envoy.config.common.mutation_rules.v3 as mutation
import envoy_data_plane.envoy.config.core.v3 as core
import envoy_data_plane.envoy.config.endpoint.v3 as endpoint_v3
import envoy_data_plane.envoy.config.listener.v3 as listener_v3
import envoy_data_plane.envoy.config.route.v3 as route_v3
import envoy_data_plane.envoy.extensions.access_loggers.stream.v3 as stream_v3
import envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 as ext_proc_v3
import envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 as header_mutation_v3
import envoy_data_plane.envoy.extensions.filters.http.jwt_authn.v3 as jwt_v3
import envoy_data_plane.envoy.extensions.filters.http.router.v3 as router_v3
import envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 as hcm_v3
import envoy_data_plane.envoy.extensions.retry.host.previous_hosts.v3 as previous_hosts_v3
import envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 as tls_v3
import envoy_data_plane.envoy.extensions.upstreams.http.v3 as upstream_v3
import envoy_data_plane.envoy.type.matcher.v3 as matcher
import envoy_data_plane.envoy.type.v3 as type_v3
from envoy_data_plane.google.protobuf import Any as Packed
from envoy_data_plane.google.protobuf import Struct

from memory_extproc.envoyconfig.options import (
    API,
    FILTER,
    JWKS,
    OBSERVER,
    SIDECAR,
    UPSTREAM,
    Bodies,
    EnvoyOptions,
    IdentityMode,
    RestRoute,
    TokenRequirements,
    Upstream,
)
from memory_extproc.extproc.observer import HANDED
from memory_extproc.request.admission import ARRIVED, CLUSTER, METADATA, ROUTE

_SECOND = timedelta(seconds=1)
# Pings keep connections open through stateful firewalls. The sidecar's gRPC server accepts a ping every 5 s and
# closes the connection on faster pings, which would truncate responses.
_PING_EVERY = timedelta(seconds=30)


def bootstrap(options: EnvoyOptions) -> dict[str, Any]:
    """The configuration for `envoy -c`, as plain values."""
    clusters = [sidecar_cluster(options), upstream_cluster(options.upstream, options)]
    if options.rest is not None:
        clusters.append(api_cluster(options, options.rest))
    if options.verified is not None and options.verified.jwks_url:
        clusters.append(_jwks_cluster(options.verified.jwks_url))
    return plain(
        bootstrap_v3.Bootstrap(
            # The admin port can stop Envoy and dump its secrets: never off loopback.
            admin=bootstrap_v3.Admin(address=_socket("127.0.0.1", options.admin_port)),
            static_resources=bootstrap_v3.BootstrapStaticResources(
                listeners=[_listener(options)], clusters=clusters
            ),
        )
    )


def plain(message: betterproto2.Message) -> dict[str, Any]:
    """Convert with Envoy's own field names; defaults are omitted."""
    return message.to_dict(casing=betterproto2.Casing.SNAKE)


def _listener(options: EnvoyOptions) -> listener_v3.Listener:
    host, port = options.listen
    manager = connection_manager(options)
    return listener_v3.Listener(
        name="llm",
        address=_socket(host, port),
        # A BUFFERED body above this limit gets Envoy's own 413, regardless of failure_mode_allow. The limit is well
        # above the sidecar's, so that larger bodies pass the sidecar untouched instead.
        per_connection_buffer_limit_bytes=options.buffer_bytes,
        filter_chains=[
            listener_v3.FilterChain(
                filters=[
                    listener_v3.Filter(
                        name="envoy.filters.network.http_connection_manager", typed_config=Packed.pack(manager)
                    )
                ]
            )
        ],
    )


def sidecar_cluster(options: EnvoyOptions) -> cluster_v3.Cluster:
    """The sidecar: HTTP/2, health-checked, with a breaker that does not silently bypass it."""
    http2 = core.Http2ProtocolOptions(
        connection_keepalive=core.KeepaliveSettings(interval=_PING_EVERY, timeout=5 * _SECOND)
    )
    return _cluster(
        SIDECAR,
        _address(options.sidecar),
        connect_timeout=_SECOND,
        # A stream lasts as long as its response; with the default of 1024, the 1025th conversation would bypass
        # memory silently.
        circuit_breakers=_breaker(options.settings.limits.streams),
        # A modified body comes back whole, in a single message.
        per_connection_buffer_limit_bytes=options.buffer_bytes,
        health_checks=[_health_check(options.settings.envoy.health_interval)],
        # Without a healthy sidecar requests pass at once; panic routing would wait for a dead sidecar instead.
        common_lb_config=cluster_v3.ClusterCommonLbConfig(healthy_panic_threshold=type_v3.Percent(value=0)),
        transport_socket=_sidecar_tls(options),
        typed_extension_protocol_options=_protocol(
            upstream_v3.HttpProtocolOptions(
                explicit_http_config=upstream_v3.HttpProtocolOptionsExplicitHttpConfig(http2_protocol_options=http2)
            )
        ),
    )


def api_cluster(options: EnvoyOptions, rest: RestRoute) -> cluster_v3.Cluster:
    """The memory API's HTTP port of the same sidecar, as an ordinary upstream."""
    http1 = upstream_v3.HttpProtocolOptionsExplicitHttpConfig(http_protocol_options=core.Http1ProtocolOptions())
    return _cluster(
        API,
        _address(rest.address),
        connect_timeout=_SECOND,
        circuit_breakers=_breaker(options.settings.limits.streams),
        health_checks=[_connection_check(options.settings.envoy.health_interval)],
        common_lb_config=cluster_v3.ClusterCommonLbConfig(healthy_panic_threshold=type_v3.Percent(value=0)),
        transport_socket=_sidecar_tls(options, alpn="http/1.1"),
        typed_extension_protocol_options=_protocol(upstream_v3.HttpProtocolOptions(explicit_http_config=http1)),
    )


def _health_check(interval: timedelta) -> core.HealthCheck:
    return core.HealthCheck(
        timeout=_SECOND,
        interval=interval,
        # The default is a minute: a sidecar that stops between two requests would be detected too late.
        no_traffic_interval=interval,
        unhealthy_threshold=1,
        healthy_threshold=1,
        grpc_health_check=core.HealthCheckGrpcHealthCheck(service_name="readiness"),
    )


def upstream_cluster(upstream: Upstream, options: EnvoyOptions) -> cluster_v3.Cluster:
    http1 = upstream_v3.HttpProtocolOptionsExplicitHttpConfig(http_protocol_options=core.Http1ProtocolOptions())
    idle = options.settings.envoy.idle_timeout
    return _cluster(
        UPSTREAM,
        core.Address(socket_address=core.SocketAddress(address=upstream.host, port_value=upstream.port)),
        connect_timeout=5 * _SECOND,
        circuit_breakers=_breaker(options.settings.limits.streams),
        transport_socket=_tls(upstream.host) if upstream.tls else None,
        typed_extension_protocol_options=_protocol(
            upstream_v3.HttpProtocolOptions(
                common_http_protocol_options=core.HttpProtocolOptions(idle_timeout=idle),
                explicit_http_config=http1,
            )
        ),
    )


def _jwks_cluster(url: str) -> cluster_v3.Cluster:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if secure else 80)
    return _cluster(
        JWKS,
        core.Address(socket_address=core.SocketAddress(address=host, port_value=port)),
        connect_timeout=5 * _SECOND,
        transport_socket=_tls(host) if secure else None,
    )


def _cluster(name: str, address: core.Address, **more: Any) -> cluster_v3.Cluster:
    named = address.socket_address is not None and not _is_ip(address.socket_address.address)
    # STRICT_DNS uses every address of a name, so that a headless Service spreads the load over several sidecars.
    discovery = cluster_v3.ClusterDiscoveryType.STRICT_DNS if named else cluster_v3.ClusterDiscoveryType.STATIC
    endpoint = endpoint_v3.LbEndpoint(endpoint=endpoint_v3.Endpoint(address=address))
    return cluster_v3.Cluster(
        name=name,
        type=discovery,
        load_assignment=endpoint_v3.ClusterLoadAssignment(
            cluster_name=name, endpoints=[endpoint_v3.LocalityLbEndpoints(lb_endpoints=[endpoint])]
        ),
        **more,
    )


def _breaker(streams: int) -> cluster_v3.CircuitBreakers:
    return cluster_v3.CircuitBreakers(
        thresholds=[
            cluster_v3.CircuitBreakersThresholds(
                max_connections=streams, max_pending_requests=streams, max_requests=streams
            )
        ]
    )


def _protocol(options: upstream_v3.HttpProtocolOptions) -> dict[str, Packed]:
    return {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": Packed.pack(options)}


def _sidecar_tls(options: EnvoyOptions, *, alpn: str = "h2") -> core.TransportSocket | None:
    ours = options.client_tls
    if ours is None:
        return None
    certificate = tls_v3.TlsCertificate(
        certificate_chain=core.DataSource(filename=ours.cert), private_key=core.DataSource(filename=ours.key)
    )
    return _tls(ours.server_name, ca=ours.ca, certificates=[certificate], alpn=[alpn])


def _tls(
    name: str,
    ca: str = "/etc/ssl/certs/ca-certificates.crt",
    certificates: list[tls_v3.TlsCertificate] | None = None,
    alpn: list[str] | None = None,
) -> core.TransportSocket:
    # By default Envoy verifies no name, and would accept any certificate of the CA.
    kind = (
        tls_v3.SubjectAltNameMatcherSanType.IP_ADDRESS if _is_ip(name) else tls_v3.SubjectAltNameMatcherSanType.DNS
    )
    carried = tls_v3.SubjectAltNameMatcher(san_type=kind, matcher=matcher.StringMatcher(exact=name))
    context = tls_v3.UpstreamTlsContext(
        sni="" if _is_ip(name) else name,
        common_tls_context=tls_v3.CommonTlsContext(
            tls_certificates=certificates or [],
            alpn_protocols=alpn or [],
            validation_context=tls_v3.CertificateValidationContext(
                trusted_ca=core.DataSource(filename=ca), match_typed_subject_alt_names=[carried]
            ),
        ),
    )
    return core.TransportSocket(name="envoy.transport_sockets.tls", typed_config=Packed.pack(context))


def _address(text: str) -> core.Address:
    """`host:port` or `unix:/path`."""
    if text.startswith("unix:"):
        return core.Address(pipe=core.Pipe(path=text.removeprefix("unix:")))
    host, _, port = text.rpartition(":")
    return _socket(host.removeprefix("[").removesuffix("]"), int(port))


def _socket(host: str, port: int) -> core.Address:
    return core.Address(socket_address=core.SocketAddress(address=host, port_value=port))


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


# Routes of the memory API on the chat listener.

PREFIX = "/v1/memory"


def _connection_check(interval: timedelta) -> core.HealthCheck:
    """Checks that a connection can be made, TLS included."""
    return core.HealthCheck(
        timeout=_SECOND,
        interval=interval,
        no_traffic_interval=interval,
        unhealthy_threshold=1,
        healthy_threshold=1,
        tcp_health_check=core.HealthCheckTcpHealthCheck(),
    )


# Neither fault can follow a processed request, so any call, even a forget, may be retried on another replica.
_UNSENT = route_v3.RetryPolicy(
    retry_on="connect-failure,refused-stream",
    num_retries=2,
    retry_host_predicate=[
        route_v3.RetryPolicyRetryHostPredicate(
            name="envoy.retry_host_predicates.previous_hosts",
            typed_config=Packed.pack(previous_hosts_v3.PreviousHostsPredicate()),
        )
    ],
    host_selection_retry_max_attempts=3,
)


def rest_routes(options: EnvoyOptions) -> list[route_v3.Route]:
    """The API's and the page's routes, before the chat routes. ext_proc is off: there is nothing to recall."""
    per_filter = {FILTER: Packed.pack(ext_proc_v3.ExtProcPerRoute(disabled=True))}
    # Not a plain prefix: /v1/memories, should an LLM API ever have it, is not ours.
    matches = {
        "memory_api": route_v3.RouteMatch(path_separated_prefix=PREFIX),
        "memory_api_verbs": route_v3.RouteMatch(prefix=f"{PREFIX}:"),
    }
    common: dict[str, Any] = {
        "cluster": API,
        "timeout": options.settings.envoy.route_timeout,
        "idle_timeout": options.settings.envoy.idle_timeout,
        "retry_policy": _UNSENT,
    }
    # The API rejects unknown host names (DNS rebinding). Envoy has checked the client's.
    action = route_v3.RouteAction(host_rewrite_literal="localhost", append_x_forwarded_host=True, **common)
    actions = dict.fromkeys(matches, action)
    if options.rest is not None and options.rest.page:
        # With the name that the browser asked for (console.hosts): forms come from the same origin.
        matches["memory_page"] = route_v3.RouteMatch(path_separated_prefix="/console")
        actions["memory_page"] = route_v3.RouteAction(**common)
    return [
        route_v3.Route(
            name=name,
            match=match,
            route=actions[name],
            typed_per_filter_config=per_filter,
            request_headers_to_add=_name_projects(options),
        )
        for name, match in matches.items()
    ]


def _name_projects(options: EnvoyOptions) -> list[core.HeaderValueOption]:
    """Names the caller's projects, which Envoy's metadata holds, to the API; a client's own header goes."""
    header, source = options.settings.api.trusted_proxy.projects_header, options.settings.identity.metadata_projects
    if not (source and header):
        return []
    namespace, _, keys = source.partition(":")
    place = ":".join((namespace, *keys.split(".")))
    return [
        core.HeaderValueOption(
            header=core.HeaderValue(key=header, value=f"%DYNAMIC_METADATA({place})%"),
            append_action=core.HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
            keep_empty_value=True,
        )
    ]


# HTTP filters around the sidecar: strip, verify, remember, route; and the access log.

_SEND = ext_proc_v3.ProcessingModeHeaderSendMode.SEND
_SKIP = ext_proc_v3.ProcessingModeHeaderSendMode.SKIP
_BUFFERED = ext_proc_v3.ProcessingModeBodySendMode.BUFFERED
_NONE = ext_proc_v3.ProcessingModeBodySendMode.NONE
_DUPLEX = ext_proc_v3.ProcessingModeBodySendMode.FULL_DUPLEX_STREAMED
_STREAMED = ext_proc_v3.ProcessingModeBodySendMode.STREAMED

# A JSON line per exchange, with its memory outcome and cost; no caller, no user text.
_LOGGED = {
    "time": "%START_TIME%",
    "method": "%REQ(:METHOD)%",
    "path": "%PATH(NQ)%",
    "status": "%RESPONSE_CODE%",
    "flags": "%RESPONSE_FLAGS%",
    "duration_ms": "%DURATION%",
    "request_id": "%REQ(X-REQUEST-ID)%",
    "memory": f"%DYNAMIC_METADATA({METADATA})%",
    "memory_status": "%RESP(X-MEMORY-STATUS)%",
    # Microseconds per message to the sidecar, in the format of ext_proc's filter state.
    "memory_cost": f"%FILTER_STATE({FILTER}:PLAIN)%",
}


def connection_manager(options: EnvoyOptions) -> hcm_v3.HttpConnectionManager:
    return hcm_v3.HttpConnectionManager(
        stat_prefix="llm",
        use_remote_address=True,
        normalize_path=True,
        # A model may pause for long between two response chunks.
        stream_idle_timeout=options.settings.envoy.idle_timeout,
        # Realtime APIs. The sidecar releases an upgrade at its headers, so that no side waits for the end of a
        # body.
        upgrade_configs=[hcm_v3.HttpConnectionManagerUpgradeConfig(upgrade_type="websocket")],
        access_log=[_access_log()],
        http_filters=[*observer_filters(options), *identity_filters(options), memory_filter(options), _router()],
        route_config=_routes(options),
    )


def identity_filters(options: EnvoyOptions) -> list[hcm_v3.HttpFilter]:
    """The filters that prevent clients from asserting an identity.

    They come first: a route's request_headers_to_remove takes effect in the router filter, after the sidecar has
    read the header."""
    filters: list[hcm_v3.HttpFilter] = []
    if options.identity is not IdentityMode.TRUST and options.identity_headers:
        removals = [mutation.HeaderMutation(remove=name) for name in options.identity_headers]
        mutations = header_mutation_v3.Mutations(request_mutations=removals)
        filters.append(_filter("identity_strip", header_mutation_v3.HeaderMutation(mutations=mutations)))
    if options.identity is IdentityMode.JWT and options.verified is not None:
        filters.append(_filter("jwt_authn", _jwt(options.verified, options)))
    return filters


def _jwt(verified: TokenRequirements, options: EnvoyOptions) -> jwt_v3.JwtAuthentication:
    provider = jwt_v3.JwtProvider(
        issuer=verified.issuer,
        audiences=[verified.audience],
        require_expiration=True,
        # The sidecar and the LLM's gateway may need the token too.
        forward=True,
        payload_in_metadata="jwt",
        claim_to_headers=[
            jwt_v3.JwtClaimToHeader(header_name=header, claim_name=claim)
            for header, claim in options.claimed_headers
        ],
        **_keys(verified),
    )
    # All paths require a token, else 401: anonymous endpoints need a separate listener.
    everything = jwt_v3.RequirementRule(
        match=route_v3.RouteMatch(prefix="/"), requires=jwt_v3.JwtRequirement(provider_name="caller")
    )
    return jwt_v3.JwtAuthentication(providers={"caller": provider}, rules=[everything])


def _keys(verified: TokenRequirements) -> dict[str, Any]:
    if not verified.jwks_url:
        return {"local_jwks": core.DataSource(filename=verified.jwks_file)}
    uri = core.HttpUri(uri=verified.jwks_url, cluster=JWKS, timeout=timedelta(seconds=5))
    fetch = jwt_v3.JwksAsyncFetch(fast_listener=True)
    return {"remote_jwks": jwt_v3.RemoteJwks(http_uri=uri, cache_duration=timedelta(minutes=5), async_fetch=fetch)}


def memory_filter(options: EnvoyOptions) -> hcm_v3.HttpFilter:
    """The sidecar's filter. It must be after authentication and before the router."""
    return _filter(FILTER, external_processor(options))


def external_processor(options: EnvoyOptions) -> ext_proc_v3.ExternalProcessor:
    # Includes our own namespace: another memory filter on the route uses it to mark the request as processed.
    namespaces = [*options.forwarded_namespaces, METADATA]
    forwarded = ext_proc_v3.MetadataOptionsMetadataNamespaces(untyped=namespaces)
    told = [METADATA, HANDED] if options.two_filters else [METADATA]
    written = ext_proc_v3.MetadataOptionsMetadataNamespaces(untyped=told)
    return ext_proc_v3.ExternalProcessor(
        grpc_service=core.GrpcService(
            envoy_grpc=core.GrpcServiceEnvoyGrpc(cluster_name=SIDECAR),
            # A sidecar that is shutting down rejects the stream: retry on another replica, or on its successor.
            retry_policy=core.RetryPolicy(retry_on="unavailable,reset,connect-failure", num_retries=1),
        ),
        # Memory is an enhancement: without the sidecar requests go on as they came. Alert on
        # envoy_http_ext_proc_memory_failure_mode_allowed, because nothing else shows it. In FULL_DUPLEX_STREAMED
        # Envoy heeds this only until the first byte of a body: there health checks must know a sidecar is gone.
        failure_mode_allow=True,
        stat_prefix=FILTER,
        processing_mode=_processing_mode(options),
        message_timeout=options.settings.message_timeout,
        request_attributes=[ROUTE, CLUSTER, ARRIVED],
        metadata_options=ext_proc_v3.MetadataOptions(forwarding_namespaces=forwarded, receiving_namespaces=written),
        # The sidecar changes no route and sends no response of its own, so neither is allowed.
        route_cache_action=ext_proc_v3.ExternalProcessorRouteCacheAction.RETAIN,
        disable_immediate_response=True,
    )


def _processing_mode(options: EnvoyOptions) -> ext_proc_v3.ProcessingMode:
    duplex = options.bodies is Bodies.FULL_DUPLEX
    return ext_proc_v3.ProcessingMode(
        request_header_mode=_SEND,
        # BUFFERED is the only mode in which a crash of the sidecar cannot truncate a request.
        request_body_mode=_DUPLEX if duplex else _BUFFERED,
        # FULL_DUPLEX_STREAMED requires trailers, which may mark the end of a body.
        request_trailer_mode=_SEND if duplex else _SKIP,
        response_header_mode=_SEND,
        # With two filters, the observing filter sees the response.
        response_body_mode=_NONE if options.two_filters else _DUPLEX if duplex else _STREAMED,
        # If an upstream sends trailers, the last body chunk is not marked as the last.
        response_trailer_mode=_SKIP if options.two_filters else _SEND,
    )


def observer_filters(options: EnvoyOptions) -> list[hcm_v3.HttpFilter]:
    """With two filters: the observing filter.

    It comes before all others, and so sees the client's original request and, because responses pass the filters in
    reverse, the final response."""
    return [_filter(OBSERVER, _observer())] if options.two_filters else []


def _observer() -> ext_proc_v3.ExternalProcessor:
    return ext_proc_v3.ExternalProcessor(
        grpc_service=core.GrpcService(envoy_grpc=core.GrpcServiceEnvoyGrpc(cluster_name=SIDECAR)),
        failure_mode_allow=True,
        stat_prefix=OBSERVER,
        observability_mode=True,
        # Keeps its streams open after the exchange, until the last messages have arrived.
        deferred_close_timeout=timedelta(seconds=1),
        processing_mode=ext_proc_v3.ProcessingMode(
            request_header_mode=_SEND,
            # Copies arrive in chunks, because this mode has no BUFFERED. Trailers mark the end of a body before
            # them.
            request_body_mode=_STREAMED,
            request_trailer_mode=_SEND,
            response_header_mode=_SEND,
            response_body_mode=_STREAMED,
            response_trailer_mode=_SEND,
        ),
        request_attributes=[ROUTE, ARRIVED],
        # Caller and outcome, from the filter that modifies the request. Clients cannot write this namespace.
        metadata_options=ext_proc_v3.MetadataOptions(
            forwarding_namespaces=ext_proc_v3.MetadataOptionsMetadataNamespaces(untyped=[HANDED])
        ),
        disable_immediate_response=True,
    )


def _routes(options: EnvoyOptions) -> route_v3.RouteConfiguration:
    upstream = options.upstream
    standard = 443 if upstream.tls else 80
    host = upstream.host if upstream.port == standard else f"{upstream.host}:{upstream.port}"
    action = route_v3.RouteAction(
        cluster=UPSTREAM,
        host_rewrite_literal=host,
        # Zero means no timeout: a response may stream for longer than Envoy's default of 15 s.
        timeout=options.settings.envoy.route_timeout,
        idle_timeout=options.settings.envoy.idle_timeout,
    )
    route = route_v3.Route(name="llm", match=route_v3.RouteMatch(prefix="/"), route=action)
    rest = [] if options.rest is None else rest_routes(options)
    return route_v3.RouteConfiguration(
        name="llm", virtual_hosts=[route_v3.VirtualHost(name="llm", domains=["*"], routes=[*rest, route])]
    )


def _access_log() -> accesslog_v3.AccessLog:
    line = core.SubstitutionFormatString(json_format=Struct.from_dict(_LOGGED), omit_empty_values=True)
    return accesslog_v3.AccessLog(
        name="envoy.access_loggers.stdout", typed_config=Packed.pack(stream_v3.StdoutAccessLog(log_format=line))
    )


def _router() -> hcm_v3.HttpFilter:
    return _filter("envoy.filters.http.router", router_v3.Router())


def _filter(name: str, config: Any) -> hcm_v3.HttpFilter:
    return hcm_v3.HttpFilter(name=name, typed_config=Packed.pack(config))
