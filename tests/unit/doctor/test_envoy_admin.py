"""Facts read from Envoy's admin page, and the findings that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from memory_extproc.doctor import check_envoy
from memory_extproc.doctor.check_envoy import FilterChain, read_chains, read_counters, seconds
from memory_extproc.doctor.gateway import CheckVerdict

Named = tuple[str, str, Mapping[str, Any]]
KINDS = {
    "ext_proc": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
    "jwt": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
    "buffer": "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer",
    "decompressor": "type.googleapis.com/envoy.extensions.filters.http.decompressor.v3.Decompressor",
    "router": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
}
MODES = {"request_body_mode": "BUFFERED", "response_body_mode": "STREAMED"}
MEMORY: Named = (
    "memory",
    "ext_proc",
    {"processing_mode": MODES, "failure_mode_allow": True, "message_timeout": "1s"},
)
ROUTER: Named = ("envoy.filters.http.router", "router", {})


def a_dump(
    *filters: Named, buffer: int | None = 16 * 1024 * 1024, routes: Sequence[str] = ("0s",)
) -> Mapping[str, Any]:
    """A /config_dump with one listener; its routes by their timeouts, "" for none given."""
    table = [
        {"match": {"prefix": "/"}, "route": {"cluster": "model", **({"timeout": each} if each else {})}}
        for each in routes
    ]
    manager = {
        "@type": "type.googleapis.com/x.v3.HttpConnectionManager",
        "http_filters": [
            {"name": name, "typed_config": {"@type": KINDS[kind], **config}} for name, kind, config in filters
        ],
        "route_config": {"virtual_hosts": [{"routes": table}]},
    }
    chains = [{"filters": [{"typed_config": manager}]}]
    listener: dict[str, Any] = {"name": "front", "address": {}, "filter_chains": chains}
    if buffer is not None:
        listener["per_connection_buffer_limit_bytes"] = buffer
    return {"configs": [{"dynamic_listeners": [{"active_state": {"listener": listener}}]}]}


def chains(*filters: Named, **wired: Any) -> list[FilterChain]:
    return read_chains(a_dump(*filters, **wired))


def ext_proc(name: str, **config: Any) -> Named:
    return (name, "ext_proc", config)


def test_a_filter_of_memory_is_known_by_its_name_its_prefix_or_its_cluster() -> None:
    router = ext_proc("extproc", grpc_service={"envoy_grpc": {"cluster_name": "router"}})
    for ours in (
        ext_proc("memory"),
        ext_proc("one", stat_prefix="memory"),
        ext_proc("one", grpc_service={"envoy_grpc": {"cluster_name": "outbound|50051||memory-extproc.ns.svc"}}),
    ):
        assert [chain.memory for chain in chains(router, ours, ROUTER)] == [1]
    assert [chain.memory for chain in chains(ext_proc("anything"), ROUTER)] == [0]
    assert chains(ext_proc("one"), ext_proc("two"), ROUTER) == []
    assert [chain.memory for chain in read_chains(a_dump(ext_proc("one"), ext_proc("two")), "two")] == [1]
    assert read_chains(a_dump(ext_proc("one")), "other") == []


@pytest.mark.parametrize("dump", [{}, {"configs": [None, 3, {"dynamic_listeners": "x"}]}, a_dump(ROUTER)])
def test_a_dump_without_memory_has_no_chain_of_it(dump: Mapping[str, Any]) -> None:
    assert read_chains(dump) == []


def test_routes_of_another_place_are_found_by_their_name() -> None:
    dump: dict[str, Any] = dict(a_dump(MEMORY, ROUTER))
    listener = dump["configs"][0]["dynamic_listeners"][0]["active_state"]["listener"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    table = manager.pop("route_config")
    manager["rds"] = {"route_config_name": "public"}
    dump["configs"].append({"dynamic_route_configs": [{"route_config": {"name": "public", **table}}]})
    assert [chain.route_timeouts for chain in read_chains(dump)] == [[timedelta()]]


@pytest.mark.parametrize(
    ("filters", "verdict", "said"),
    [
        pytest.param(
            (("jwt_authn", "jwt", {}), MEMORY, ROUTER), CheckVerdict.OK, "jwt_authn → [memory]", id="right"
        ),
        pytest.param(
            (MEMORY, ("jwt_authn", "jwt", {}), ROUTER), CheckVerdict.FAIL, "jwt_authn", id="who-asks-behind"
        ),
        pytest.param(
            (ext_proc("envoy.filters.http.ext_proc/aigateway"), MEMORY, ROUTER),
            CheckVerdict.FAIL,
            "aigateway",
            id="a-gateway-that-rebuilds-before",
        ),
        pytest.param(
            (MEMORY, ext_proc("envoy.filters.http.ext_proc/aigateway"), ROUTER),
            CheckVerdict.OK,
            "[memory]",
            id="a-gateway-that-rebuilds-behind",
        ),
        pytest.param(
            (ext_proc("semantic-router"), MEMORY, ROUTER), CheckVerdict.OK, "[memory]", id="a-router-before"
        ),
        pytest.param(
            (MEMORY, ext_proc("semantic-router"), ROUTER), CheckVerdict.WARN, "too late", id="a-router-behind"
        ),
        pytest.param(
            (("gunzip", "decompressor", {}), MEMORY, ROUTER), CheckVerdict.WARN, "hang", id="a-decompressor"
        ),
    ],
)
def test_the_order_of_filters_is_judged(filters: tuple[Named, ...], verdict: CheckVerdict, said: str) -> None:
    finding = check_envoy.the_order(chains(*filters))
    assert finding.verdict is verdict
    assert said in finding.seen


def test_without_the_filter_nothing_more_is_judged() -> None:
    assert check_envoy.the_order([]).verdict is CheckVerdict.FAIL
    rest = [check_envoy.the_modes([]), check_envoy.the_limits([], 1), check_envoy.the_timeouts([])]
    assert {finding.verdict for finding in rest} == {CheckVerdict.UNKNOWN}


@pytest.mark.parametrize(
    ("modes", "allow", "verdict"),
    [
        (MODES, True, CheckVerdict.OK),
        (MODES, False, CheckVerdict.WARN),
        ({**MODES, "request_body_mode": "BUFFERED_PARTIAL"}, True, CheckVerdict.FAIL),
        ({**MODES, "response_body_mode": "BUFFERED"}, True, CheckVerdict.FAIL),
        ({}, True, CheckVerdict.FAIL),
        (dict.fromkeys(MODES, "FULL_DUPLEX_STREAMED"), False, CheckVerdict.OK),
    ],
)
def test_modes_in_which_memory_does_not_work_are_found(
    modes: Mapping[str, str], allow: bool, verdict: CheckVerdict
) -> None:
    ours = ext_proc("memory", processing_mode=modes, failure_mode_allow=allow)
    assert check_envoy.the_modes(chains(ours, ROUTER)).verdict is verdict


def test_bodies_in_pieces_are_said_to_have_no_copy_and_need_no_buffer() -> None:
    ours = ext_proc("memory", processing_mode=dict.fromkeys(MODES, "FULL_DUPLEX_STREAMED"), failure_mode_allow=True)
    found = chains(ours, ROUTER)
    assert "no copy" in check_envoy.the_modes(found).seen
    assert check_envoy.the_limits(found, 2**40).verdict is CheckVerdict.OK
    assert check_envoy.the_limits(chains(ext_proc("memory", processing_mode=MODES), ROUTER), 2**40).verdict is (
        CheckVerdict.FAIL
    )


def test_of_two_filters_the_one_that_changes_is_memory_and_the_one_that_watches_sees_answers() -> None:
    watching = {"request_body_mode": "STREAMED", "response_body_mode": "STREAMED"}
    observer = ext_proc("memory_observer", observability_mode=True, processing_mode=watching)
    changing = ext_proc("memory", failure_mode_allow=True, processing_mode={**MODES, "response_body_mode": "NONE"})
    both = chains(observer, ("jwt_authn", "jwt", {}), changing, ROUTER)
    assert [chain.memory for chain in both] == [2]
    assert check_envoy.the_order(both).verdict is CheckVerdict.OK
    assert check_envoy.the_modes(both).verdict is CheckVerdict.OK
    # somebody else's that only watches is no router
    assert (
        check_envoy.the_order(chains(MEMORY, ext_proc("audit", observability_mode=True))).verdict is CheckVerdict.OK
    )


def test_a_listener_that_buffers_less_than_memory_takes_is_found() -> None:
    most = 4 * 1024 * 1024
    assert check_envoy.the_limits(chains(MEMORY), most).verdict is CheckVerdict.OK
    # what Envoy does where nothing is said
    assert "1024 KiB" in check_envoy.the_limits(chains(MEMORY, buffer=None), most).seen
    # a buffer filter before memory raises the limit
    assert (
        check_envoy.the_limits(chains(("buffer", "buffer", {}), MEMORY, buffer=None), most).verdict
        is CheckVerdict.OK
    )


@pytest.mark.parametrize(
    ("waits", "routes", "verdict"),
    [
        ({"message_timeout": "1s"}, ("0s", "600s"), CheckVerdict.OK),
        ({"message_timeout": "0.100s"}, ("0s",), CheckVerdict.FAIL),
        ({}, ("0s",), CheckVerdict.OK),  # 200 ms, above the default deadline
        ({"message_timeout": "1s"}, ("",), CheckVerdict.WARN),  # Envoy's 15 s
        ({"message_timeout": "1s"}, ("0s", "30s"), CheckVerdict.WARN),
    ],
)
def test_timeouts_that_cut_memory_or_answers_off_are_found(
    waits: Mapping[str, str], routes: Sequence[str], verdict: CheckVerdict
) -> None:
    found = chains(("memory", "ext_proc", waits), ROUTER, routes=routes)
    assert check_envoy.the_timeouts(found).verdict is verdict


def test_a_duration_that_is_none_is_what_stands_for_it() -> None:
    assert seconds("1.5s", timedelta()) == timedelta(seconds=1.5)
    assert seconds(None, timedelta(seconds=2)) == seconds("soon", timedelta(seconds=2)) == timedelta(seconds=2)


def stat(name: str, value: object) -> dict[str, object]:
    return {"name": name, "value": value}


def test_counters_are_those_of_memory_and_no_other_filter() -> None:
    counted = read_counters(
        {
            "stats": [
                stat("http.llm.ext_proc.memory.streams_started", 7),
                stat("http.other.ext_proc.memory.streams_started", 1),
                stat("http.llm.ext_proc.router.streams_failed", 5),
                stat("cluster.memory_extproc.upstream_rq_pending_overflow", 2),
                stat("cluster.model.upstream_rq_pending_overflow", 9),
                {"histograms": {}},
                "not a counter",
            ]
        }
    )
    assert (counted["streams_started"], counted["streams_failed"], counted["rq_overflow"]) == (8, 0, 2)
    alone = read_counters({"stats": [stat("http.llm.ext_proc.streams_failed", 3)]})
    assert alone["streams_failed"] == 3


@pytest.mark.parametrize(
    ("grown", "verdict", "mend"),
    [
        ({"streams_started": 5}, CheckVerdict.OK, ""),
        ({}, CheckVerdict.FAIL, "route"),
        (
            {"streams_started": 5, "message_timeouts": 1, "failure_mode_allowed": 1},
            CheckVerdict.FAIL,
            "message_timeout",
        ),
        ({"streams_started": 5, "rq_overflow": 1, "failure_mode_allowed": 1}, CheckVerdict.FAIL, "max_requests"),
        ({"streams_started": 5, "failure_mode_allowed": 1}, CheckVerdict.FAIL, "cannot reach"),
        ({"streams_started": 5, "rejected_header_mutations": 1}, CheckVerdict.WARN, "mutation_rules"),
    ],
)
def test_what_passed_memory_by_is_told_by_its_cause(
    grown: Mapping[str, int], verdict: CheckVerdict, mend: str
) -> None:
    before = dict.fromkeys(read_counters({}), 10)
    finding = check_envoy.passed_by(before, {name: 10 + grown.get(name, 0) for name in before})
    assert finding.verdict is verdict
    assert mend in finding.mend


def a_host(health: Mapping[str, Any] | None = None, **counted: int) -> Mapping[str, Any]:
    return {
        "health_status": health or {"eds_health_status": "HEALTHY"},
        "stats": [{"name": name, "value": str(value)} for name, value in counted.items()],
    }


AWAY = a_host({"failed_active_health_check": True}, cx_connect_fail=3)


@pytest.mark.parametrize(
    ("hosts", "verdict", "said"),
    [
        ([a_host(rq_success=4)], CheckVerdict.OK, "all of them healthy"),
        ([a_host(rq_success=4, rq_error=1)], CheckVerdict.OK, "all of them healthy"),
        ([a_host()], CheckVerdict.OK, "all of them healthy"),
        ([a_host(), AWAY], CheckVerdict.WARN, "1 of 2 addresses"),
        ([AWAY, AWAY], CheckVerdict.FAIL, "6 connections failed"),
        ([a_host(rq_error=2)], CheckVerdict.FAIL, "1 of 1 addresses"),
        ([a_host({"eds_health_status": "UNHEALTHY"})], CheckVerdict.FAIL, "1 of 1 addresses"),
        ([], CheckVerdict.FAIL, "has no address"),
        (None, CheckVerdict.FAIL, "is not known to Envoy"),
        ("damaged", CheckVerdict.FAIL, "has no address"),
    ],
)
def test_whether_envoy_reaches_the_sidecar_is_read_from_its_clusters(
    hosts: Any, verdict: CheckVerdict, said: str
) -> None:
    found = chains(ext_proc("memory", grpc_service={"envoy_grpc": {"cluster_name": "outbound|50051||m.svc"}}))
    statuses = [] if hosts is None else [{"name": "outbound|50051||m.svc", "host_statuses": hosts}]
    finding = check_envoy.reaches_memory(found, {"cluster_statuses": [{"name": "model"}, *statuses]})
    assert finding.verdict is verdict
    assert said in finding.seen


def test_without_a_filter_or_its_cluster_nothing_is_said_of_the_way_to_the_sidecar() -> None:
    assert check_envoy.reaches_memory([], {}).verdict is CheckVerdict.UNKNOWN
    assert check_envoy.reaches_memory(chains(ext_proc("memory")), {}).verdict is CheckVerdict.UNKNOWN
