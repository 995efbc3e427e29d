"""The Envoy configuration that goes with this sidecar: a whole bootstrap, from Envoy's own typed messages.

Why each value is what it is stands beside it; most were found by watching a real Envoy fail without them. This
module is imported only by the command that writes the configuration: its messages take a third of a second.
"""

from __future__ import annotations

import ipaddress
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import betterproto2
import envoy_data_plane.envoy.config.bootstrap.v3 as bootstrap_v3
import envoy_data_plane.envoy.config.cluster.v3 as cluster_v3
import envoy_data_plane.envoy.config.core.v3 as core
import envoy_data_plane.envoy.config.endpoint.v3 as endpoint_v3
import envoy_data_plane.envoy.config.listener.v3 as listener_v3
import envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 as tls_v3
import envoy_data_plane.envoy.extensions.upstreams.http.v3 as upstream_v3
import envoy_data_plane.envoy.type.matcher.v3 as matcher
import envoy_data_plane.envoy.type.v3 as type_v3
from envoy_data_plane.google.protobuf import Any as Packed

from memory_extproc.wire.envoy_config_filters import connection_manager
from memory_extproc.wire.envoy_config_options import API, JWKS, SIDECAR, UPSTREAM, EnvoyOptions, RestApi, Upstream

_SECOND = timedelta(seconds=1)
# Pings keep connections through firewalls that forget; the sidecar's gRPC server takes one every 5 s and answers
# faster ones by hanging up, which would cut answers short.
_PING_EVERY = timedelta(seconds=30)


def bootstrap(options: EnvoyOptions) -> dict[str, Any]:
    """What `envoy -c` takes, as plain values."""
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
    """With Envoy's own field names; what is at its default is left out."""
    return message.to_dict(casing=betterproto2.Casing.SNAKE)


def _listener(options: EnvoyOptions) -> listener_v3.Listener:
    host, port = options.listen
    manager = connection_manager(options)
    return listener_v3.Listener(
        name="llm",
        address=_socket(host, port),
        # A BUFFERED body above this is Envoy's own 413, which failure_mode_allow does not forgive. It stands
        # well above what the sidecar looks at, so that larger bodies pass it untouched instead.
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
        # A stream lives as long as an answer streams; with the default of 1024, the 1025th conversation would
        # pass without memory and nobody would know.
        circuit_breakers=_breaker(options.streams),
        # A replaced body comes back whole, in one message.
        per_connection_buffer_limit_bytes=options.buffer_bytes,
        health_checks=[_health_check(options.health_interval)],
        # With no healthy sidecar requests pass at once; panic routing would wait for a dead one instead.
        common_lb_config=cluster_v3.ClusterCommonLbConfig(healthy_panic_threshold=type_v3.Percent(value=0)),
        transport_socket=_sidecar_tls(options),
        typed_extension_protocol_options=_protocol(
            upstream_v3.HttpProtocolOptions(
                explicit_http_config=upstream_v3.HttpProtocolOptionsExplicitHttpConfig(http2_protocol_options=http2)
            )
        ),
    )


def api_cluster(options: EnvoyOptions, rest: RestApi) -> cluster_v3.Cluster:
    """The memory API's port of the same sidecar."""
    http2 = core.Http2ProtocolOptions(
        connection_keepalive=core.KeepaliveSettings(interval=_PING_EVERY, timeout=5 * _SECOND)
    )
    return _cluster(
        API,
        _address(rest.address),
        connect_timeout=_SECOND,
        circuit_breakers=_breaker(options.streams),
        transport_socket=_sidecar_tls(options),
        typed_extension_protocol_options=_protocol(
            upstream_v3.HttpProtocolOptions(
                explicit_http_config=upstream_v3.HttpProtocolOptionsExplicitHttpConfig(http2_protocol_options=http2)
            )
        ),
    )


def _health_check(interval: timedelta) -> core.HealthCheck:
    return core.HealthCheck(
        timeout=_SECOND,
        interval=interval,
        # Its default is a minute: a sidecar that leaves between two requests would be noticed too late.
        no_traffic_interval=interval,
        unhealthy_threshold=1,
        healthy_threshold=1,
        grpc_health_check=core.HealthCheckGrpcHealthCheck(service_name="readiness"),
    )


def upstream_cluster(upstream: Upstream, options: EnvoyOptions) -> cluster_v3.Cluster:
    http1 = upstream_v3.HttpProtocolOptionsExplicitHttpConfig(http_protocol_options=core.Http1ProtocolOptions())
    return _cluster(
        UPSTREAM,
        core.Address(socket_address=core.SocketAddress(address=upstream.host, port_value=upstream.port)),
        connect_timeout=5 * _SECOND,
        circuit_breakers=_breaker(options.streams),
        transport_socket=_tls(upstream.host) if upstream.tls else None,
        typed_extension_protocol_options=_protocol(
            upstream_v3.HttpProtocolOptions(
                common_http_protocol_options=core.HttpProtocolOptions(idle_timeout=options.idle_timeout),
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
    # STRICT_DNS follows every address of a name, so a headless Service of several sidecars is spread over.
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


def _sidecar_tls(options: EnvoyOptions) -> core.TransportSocket | None:
    ours = options.client_tls
    if ours is None:
        return None
    certificate = tls_v3.TlsCertificate(
        certificate_chain=core.DataSource(filename=ours.cert), private_key=core.DataSource(filename=ours.key)
    )
    return _tls(ours.server_name, ca=ours.ca, certificates=[certificate], alpn=["h2"])


def _tls(
    name: str,
    ca: str = "/etc/ssl/certs/ca-certificates.crt",
    certificates: list[tls_v3.TlsCertificate] | None = None,
    alpn: list[str] | None = None,
) -> core.TransportSocket:
    # Envoy checks no name unless told to; a certificate of anybody would do.
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
