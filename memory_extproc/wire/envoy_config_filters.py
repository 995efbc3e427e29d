"""The HTTP filters around the sidecar: strip, verify, remember, route; and the access log that shows it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import envoy_data_plane.envoy.config.accesslog.v3 as accesslog_v3
import envoy_data_plane.envoy.config.common.mutation_rules.v3 as mutation
import envoy_data_plane.envoy.config.core.v3 as core
import envoy_data_plane.envoy.config.route.v3 as route_v3
import envoy_data_plane.envoy.extensions.access_loggers.stream.v3 as stream_v3
import envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 as ext_proc_v3
import envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 as header_mutation_v3
import envoy_data_plane.envoy.extensions.filters.http.jwt_authn.v3 as jwt_v3
import envoy_data_plane.envoy.extensions.filters.http.router.v3 as router_v3
import envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 as hcm_v3
from envoy_data_plane.google.protobuf import Any as Packed
from envoy_data_plane.google.protobuf import Struct

from memory_extproc.wire.codec import HANDED, METADATA
from memory_extproc.wire.envoy_config_options import (
    FILTER,
    JWKS,
    OBSERVER,
    SIDECAR,
    UPSTREAM,
    Bodies,
    EnvoyOptions,
    IdentityMode,
    Verified,
)
from memory_extproc.wire.envoy_config_rest import rest_filter, rest_routes

_SEND = ext_proc_v3.ProcessingModeHeaderSendMode.SEND
_SKIP = ext_proc_v3.ProcessingModeHeaderSendMode.SKIP
_BUFFERED = ext_proc_v3.ProcessingModeBodySendMode.BUFFERED
_NONE = ext_proc_v3.ProcessingModeBodySendMode.NONE
_DUPLEX = ext_proc_v3.ProcessingModeBodySendMode.FULL_DUPLEX_STREAMED
_STREAMED = ext_proc_v3.ProcessingModeBodySendMode.STREAMED

# One line of JSON for each exchange, with how memory left it and what it cost; no caller, no words.
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
    # Microseconds for each message to the sidecar, as ext_proc's own filter state writes them.
    "memory_cost": f"%FILTER_STATE({FILTER}:PLAIN)%",
}


def connection_manager(options: EnvoyOptions) -> hcm_v3.HttpConnectionManager:
    return hcm_v3.HttpConnectionManager(
        stat_prefix="llm",
        use_remote_address=True,
        normalize_path=True,
        # A model may think for long between two pieces of an answer.
        stream_idle_timeout=options.idle_timeout,
        # Realtime APIs. The sidecar lets go of an upgrade at its headers, so nothing waits for a body's end.
        upgrade_configs=[hcm_v3.HttpConnectionManagerUpgradeConfig(upgrade_type="websocket")],
        access_log=[_access_log()],
        http_filters=[
            *observer_filters(options),
            *identity_filters(options),
            *_rest(options),
            memory_filter(options),
            _router(),
        ],
        route_config=_routes(options),
    )


def _rest(options: EnvoyOptions) -> list[hcm_v3.HttpFilter]:
    # Behind what says who asks: the API believes the same headers as the chats' memory does.
    return [] if options.rest is None else [rest_filter()]


def identity_filters(options: EnvoyOptions) -> list[hcm_v3.HttpFilter]:
    """What keeps clients from naming themselves. These stand before everything: request_headers_to_remove of
    a route would act in the router filter, after the sidecar has believed the header."""
    filters: list[hcm_v3.HttpFilter] = []
    if options.identity is not IdentityMode.TRUST and options.identity_headers:
        removals = [mutation.HeaderMutation(remove=name) for name in options.identity_headers]
        mutations = header_mutation_v3.Mutations(request_mutations=removals)
        filters.append(_filter("identity_strip", header_mutation_v3.HeaderMutation(mutations=mutations)))
    if options.identity is IdentityMode.JWT and options.verified is not None:
        filters.append(_filter("jwt_authn", _jwt(options.verified, options)))
    return filters


def _jwt(verified: Verified, options: EnvoyOptions) -> jwt_v3.JwtAuthentication:
    claims = ((options.user_header, verified.user_claim), (options.tenant_header, verified.tenant_claim))
    provider = jwt_v3.JwtProvider(
        issuer=verified.issuer,
        audiences=[verified.audience],
        require_expiration=True,
        # The sidecar and the LLM's gateway may want to see it too.
        forward=True,
        payload_in_metadata="jwt",
        claim_to_headers=[
            jwt_v3.JwtClaimToHeader(header_name=header, claim_name=claim)
            for header, claim in claims
            if header and claim
        ],
        **_keys(verified),
    )
    # Every path, and no token is a 401: what needs no caller needs another listener.
    everything = jwt_v3.RequirementRule(
        match=route_v3.RouteMatch(prefix="/"), requires=jwt_v3.JwtRequirement(provider_name="caller")
    )
    return jwt_v3.JwtAuthentication(providers={"caller": provider}, rules=[everything])


def _keys(verified: Verified) -> dict[str, Any]:
    if not verified.jwks_url:
        return {"local_jwks": core.DataSource(filename=verified.jwks_file)}
    uri = core.HttpUri(uri=verified.jwks_url, cluster=JWKS, timeout=timedelta(seconds=5))
    fetch = jwt_v3.JwksAsyncFetch(fast_listener=True)
    return {"remote_jwks": jwt_v3.RemoteJwks(http_uri=uri, cache_duration=timedelta(minutes=5), async_fetch=fetch)}


def memory_filter(options: EnvoyOptions) -> hcm_v3.HttpFilter:
    """The sidecar's filter. It must stand after what says who asks and before the router."""
    return _filter(FILTER, external_processor(options))


def external_processor(options: EnvoyOptions) -> ext_proc_v3.ExternalProcessor:
    namespaces = list(options.forwarded_namespaces)
    forwarded = ext_proc_v3.MetadataOptionsMetadataNamespaces(untyped=namespaces)
    told = [METADATA, HANDED] if options.two_filters else [METADATA]
    written = ext_proc_v3.MetadataOptionsMetadataNamespaces(untyped=told)
    return ext_proc_v3.ExternalProcessor(
        grpc_service=core.GrpcService(
            envoy_grpc=core.GrpcServiceEnvoyGrpc(cluster_name=SIDECAR),
            # A sidecar that is just leaving refuses the stream: another one, or the same a moment later, takes it.
            retry_policy=core.RetryPolicy(retry_on="unavailable,reset,connect-failure", num_retries=1),
        ),
        # Memory is an enhancement: without the sidecar requests go on as they came. Alert on
        # envoy_http_ext_proc_memory_failure_mode_allowed, because nothing else shows it. In FULL_DUPLEX_STREAMED
        # Envoy heeds this only until the first byte of a body: there health checks must know a sidecar is gone.
        failure_mode_allow=True,
        stat_prefix=FILTER,
        processing_mode=_processing_mode(options),
        message_timeout=options.message_timeout,
        request_attributes=["xds.route_name", "xds.cluster_name"],
        metadata_options=ext_proc_v3.MetadataOptions(
            forwarding_namespaces=forwarded if namespaces else None, receiving_namespaces=written
        ),
        # The sidecar changes no route and answers nothing itself; so it is not let.
        route_cache_action=ext_proc_v3.ExternalProcessorRouteCacheAction.RETAIN,
        disable_immediate_response=True,
    )


def _processing_mode(options: EnvoyOptions) -> ext_proc_v3.ProcessingMode:
    duplex = options.bodies is Bodies.FULL_DUPLEX
    return ext_proc_v3.ProcessingMode(
        request_header_mode=_SEND,
        # BUFFERED is the one mode in which a sidecar that dies in the middle cannot cut a request short.
        request_body_mode=_DUPLEX if duplex else _BUFFERED,
        # FULL_DUPLEX_STREAMED is refused without trailers: they may be what says that a body is whole.
        request_trailer_mode=_SEND if duplex else _SKIP,
        response_header_mode=_SEND,
        # With two filters the other one watches the answer.
        response_body_mode=_NONE if options.two_filters else _DUPLEX if duplex else _STREAMED,
        # Where an upstream sends trailers, the body's last piece does not say that it is the last.
        response_trailer_mode=_SKIP if options.two_filters else _SEND,
    )


def observer_filters(options: EnvoyOptions) -> list[hcm_v3.HttpFilter]:
    """With two filters: the one that watches. It stands before all others, so that it sees what the client sent
    and, answers passing the filters backwards, what the client gets."""
    return [_filter(OBSERVER, _observer())] if options.two_filters else []


def _observer() -> ext_proc_v3.ExternalProcessor:
    return ext_proc_v3.ExternalProcessor(
        grpc_service=core.GrpcService(envoy_grpc=core.GrpcServiceEnvoyGrpc(cluster_name=SIDECAR)),
        failure_mode_allow=True,
        stat_prefix=OBSERVER,
        observability_mode=True,
        # Its streams outlast the exchange by so much, for what was sent last to arrive.
        deferred_close_timeout=timedelta(seconds=1),
        processing_mode=ext_proc_v3.ProcessingMode(
            request_header_mode=_SEND,
            # Copies come in pieces: this mode knows no BUFFERED. Trailers say that a body before them is whole.
            request_body_mode=_STREAMED,
            request_trailer_mode=_SEND,
            response_header_mode=_SEND,
            response_body_mode=_STREAMED,
            response_trailer_mode=_SEND,
        ),
        request_attributes=["xds.route_name"],
        # Who asked and what became of it, from the filter that changes the request. No client can write this.
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
        # Zero is without end: an answer may stream for longer than Envoy's default of 15 s.
        timeout=options.route_timeout,
        idle_timeout=options.idle_timeout,
    )
    route = route_v3.Route(name="llm", match=route_v3.RouteMatch(prefix="/"), route=action)
    rest = [] if options.rest is None else rest_routes(options, options.rest)
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
