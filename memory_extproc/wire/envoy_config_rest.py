"""The memory API as HTTP and JSON on the listener of the chats: its routes, and the transcoder on them."""

from __future__ import annotations

import envoy_data_plane.envoy.config.route.v3 as route_v3
import envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 as ext_proc_v3
import envoy_data_plane.envoy.extensions.filters.http.grpc_json_transcoder.v3 as transcoder_v3
import envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 as hcm_v3
from envoy_data_plane.google.protobuf import Any as Packed

from memory_extproc.wire.envoy_config_options import API, FILTER, REST, EnvoyOptions, RestApi

PREFIX = "/v1/memory"


def rest_filter() -> hcm_v3.HttpFilter:
    """Knows no service and so does nothing, but where a route says otherwise: chats never pass a transcoder."""
    empty = transcoder_v3.GrpcJsonTranscoder(proto_descriptor_bin=b"")
    return hcm_v3.HttpFilter(name=REST, typed_config=Packed.pack(empty))


def rest_routes(options: EnvoyOptions, rest: RestApi) -> list[route_v3.Route]:
    """What stands before the chats' route. The sidecar's ext_proc is off here: there is nothing to recall."""
    per_filter = {
        REST: Packed.pack(_transcoder(rest)),
        FILTER: Packed.pack(ext_proc_v3.ExtProcPerRoute(disabled=True)),
    }
    # Not a plain prefix: /v1/memories, should an LLM's API ever have it, is none of ours.
    matches = {
        "memory_api": route_v3.RouteMatch(path_separated_prefix=PREFIX),
        "memory_api_verbs": route_v3.RouteMatch(prefix=f"{PREFIX}:"),
    }
    return [
        route_v3.Route(
            name=name,
            match=match,
            route=route_v3.RouteAction(
                cluster=API, timeout=options.route_timeout, idle_timeout=options.idle_timeout
            ),
            typed_per_filter_config=per_filter,
        )
        for name, match in matches.items()
    ]


def _transcoder(rest: RestApi) -> transcoder_v3.GrpcJsonTranscoder:
    return transcoder_v3.GrpcJsonTranscoder(
        proto_descriptor_bin=rest.descriptor,
        services=[rest.service],
        # The path that the transcoder writes has no route of its own: looked up again it would be the LLM's.
        match_incoming_request_route=True,
        # Names as they are documented, and zeros and empty texts too: clients read them without asking first.
        print_options=transcoder_v3.GrpcJsonTranscoderPrintOptions(
            preserve_proto_field_names=True,
            always_print_primitive_fields=True,
            # An export is JSON Lines instead of one array that nobody can read before its end.
            stream_newline_delimited=True,
        ),
        # A failure is a google.rpc.Status as JSON, its details included.
        convert_grpc_status=True,
        # What is no method of ours is answered here; else it would reach a gRPC server as plain HTTP.
        request_validation_options=transcoder_v3.GrpcJsonTranscoderRequestValidationOptions(
            reject_unknown_method=True,
            reject_unknown_query_parameters=True,
            reject_binding_body_field_collisions=True,
        ),
        query_param_unescape_plus=True,
        # A path that ends in a verb that we do not have is no memory's id.
        match_unregistered_custom_verb=True,
    )
