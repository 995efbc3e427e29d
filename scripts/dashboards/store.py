"""Where memories rest, and those held in process."""

from __future__ import annotations

from scripts.dashboards.panels import OURS, Panel, Query, Row, buckets, or_none, quantile, rate

STORE = (
    Row(
        "Store",
        (
            Panel(
                "Up",
                "1 while the memory store answers, by pod; and what replicas share.",
                "bool_on_off",
                (
                    Query(f"memory_extproc_store_up{{{OURS}}}", "{{instance}}"),
                    Query(f"memory_extproc_coordination_up{{{OURS}}}", "{{instance}}: coordination"),
                ),
                warn_below=1,
            ),
            Panel(
                "Calls",
                "Calls of the store by operation and outcome.",
                "ops",
                (
                    Query(
                        rate("memory_extproc_store_operations_seconds_count", "operation, outcome"),
                        "{{operation}}: {{outcome}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "Time of a call, p95",
                "By operation. Recalls from a partition in process make none.",
                "s",
                (Query(quantile(0.95, "memory_extproc_store_operations_seconds", "operation"), "{{operation}}"),),
            ),
            Panel(
                "Time of a call, all of them",
                "How many calls of the store took how long, whatever the operation.",
                "s",
                buckets("memory_extproc_store_operations_seconds"),
                heatmap=True,
            ),
            Panel(
                "Files taken away",
                "Files of the data directory that somebody deleted or exchanged while they are in use. The sidecar is not ready meanwhile.",
                "suffix: files",
                (Query(f"sum by (why) (memory_extproc_files_taken_away{{{OURS}}})", "{{why}}"),),
            ),
            Panel(
                "Calls that failed",
                "Calls of the store by operation and by how they failed.",
                "ops",
                (
                    Query(
                        or_none(
                            rate(
                                "memory_extproc_store_operations_seconds_count",
                                "operation, outcome",
                                'outcome!="ok"',
                            )
                        ),
                        "{{operation}}: {{outcome}}",
                    ),
                ),
            ),
        ),
    ),
    Row(
        "Memories in process",
        (
            Panel(
                "Callers",
                "Whose memories are held in process, by pod.",
                "suffix: callers",
                (Query(f"memory_extproc_partitions{{{OURS}}}", "{{instance}}"),),
            ),
            Panel(
                "Size",
                "What they take, by pod; bounded by recall.partition_bytes.",
                "bytes",
                (Query(f"memory_extproc_partition_bytes{{{OURS}}}", "{{instance}}"),),
            ),
            Panel(
                "Fills",
                "Partitions read from the store, by how that ended. Many for few callers: raise recall.partition_bytes, or send a caller to the same pod.",
                "ops",
                (Query(rate("memory_extproc_partition_fills_total", "outcome"), "{{outcome}}"),),
                stacked=True,
            ),
            Panel(
                "Shared searches",
                "In a project's and the operator's memories, by how they ended.",
                "ops",
                (
                    Query(
                        or_none(rate("memory_extproc_shared_searches_total", "scope, outcome")),
                        "{{scope}}: {{outcome}}",
                    ),
                ),
            ),
        ),
    ),
)
