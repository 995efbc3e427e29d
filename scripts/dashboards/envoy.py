"""Envoy's view of the filter; the only place where a bypass shows."""

from __future__ import annotations

from scripts.dashboards.panels import ENVOYS, Panel, Query, Row, or_none, rate


def _counted(name: str) -> str:
    """Of our filter; where a gateway gives it no prefix (Envoy Gateway does not), of all ext_proc filters together."""
    ours, all_of_them = f"envoy_http_ext_proc_memory_{name}", f"envoy_http_ext_proc_{name}"
    return f"{rate(ours, of=ENVOYS)} or {rate(all_of_them, of=ENVOYS)}"


ENVOY = (
    Row(
        "The filter, as Envoy counts",
        (
            Panel(
                "Streams",
                "Exchanges that Envoy began with us.",
                "reqps",
                (
                    Query(_counted("streams_started"), "started"),
                    Query(or_none(_counted("streams_failed")), "failed"),
                ),
            ),
            Panel(
                "Passed without memory",
                "failure_mode_allowed: the sidecar was away or late, and the request passed all the same. Nobody but this panel and its alert tells.",
                "reqps",
                (Query(or_none(_counted("failure_mode_allowed")), "passed"),),
                warn_above=0.01,
            ),
            Panel(
                "Timeouts",
                "Messages that we answered later than message_timeout.",
                "reqps",
                (Query(or_none(_counted("message_timeouts")), "timeouts"),),
            ),
            Panel(
                "What Envoy refused",
                "Header changes that its rules forbid, and messages that it did not expect. Both should be 0.",
                "reqps",
                (
                    Query(or_none(_counted("rejected_header_mutations")), "header changes"),
                    Query(or_none(_counted("spurious_msgs_received")), "messages"),
                ),
            ),
        ),
    ),
    Row(
        "The way to us",
        (
            Panel(
                "Healthy sidecars",
                "By Envoy's own health checks.",
                "short",
                (
                    Query(
                        f'sum(envoy_cluster_membership_healthy{{{ENVOYS}, envoy_cluster_name=~"$cluster"}})',
                        "healthy",
                    ),
                    Query(
                        f'sum(envoy_cluster_membership_total{{{ENVOYS}, envoy_cluster_name=~"$cluster"}})', "all"
                    ),
                ),
            ),
            Panel(
                "Streams open",
                "At the same time; beyond the circuit breaker's bound requests pass without memory.",
                "short",
                (
                    Query(
                        f'sum(envoy_cluster_upstream_rq_active{{{ENVOYS}, envoy_cluster_name=~"$cluster"}})',
                        "open",
                    ),
                    Query(
                        f'sum(rate(envoy_cluster_upstream_rq_pending_overflow{{{ENVOYS}, envoy_cluster_name=~"$cluster"}}[$__rate_interval]))',
                        "overflow",
                    ),
                ),
            ),
            Panel(
                "Answers to clients",
                "By class of status.",
                "reqps",
                (
                    Query(
                        rate(
                            "envoy_http_downstream_rq_xx",
                            "envoy_response_code_class",
                            'envoy_http_conn_manager_prefix!="admin"',
                            of=ENVOYS,
                        ),
                        "{{envoy_response_code_class}}xx",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "Whole exchanges",
                "p95 of their time at Envoy, the model's included.",
                "ms",
                (
                    Query(
                        f'histogram_quantile(0.95, sum by (le) (rate(envoy_http_downstream_rq_time_bucket{{{ENVOYS}, envoy_http_conn_manager_prefix!="admin"}}[$__rate_interval])))',
                        "p95",
                    ),
                ),
            ),
        ),
    ),
)
