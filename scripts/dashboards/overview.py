"""The effect of memory on requests, and its cost."""

from __future__ import annotations

from scripts.dashboards.panels import (
    OURS,
    Panel,
    Query,
    Row,
    buckets,
    gauge,
    mean,
    or_none,
    percentiles,
    quantile,
    rate,
)

EXCHANGES = "memory_extproc_exchanges_total"
ASKED = 'outcome=~"used|nothing_relevant|empty"'
FAILED = 'outcome=~"out_of_time|overloaded|unavailable"'
_USED = 'outcome="used"'
_ARM = "{{tenant}} {{arm}}"
_TENANT = 'tenant=~"$tenant"'
_CONSENT = 'outcome="no_consent"'


def _per(counted: str, of: str) -> str:
    return f"{rate(counted, 'tenant, arm', _TENANT)} / {rate(of, 'tenant, arm', _TENANT)}"


OVERVIEW = (
    Row(
        "At a glance",
        (
            Panel(
                "Requests",
                "Exchanges that reached the sidecar, each second.",
                "reqps",
                (Query(rate(EXCHANGES)),),
                small=True,
            ),
            Panel(
                "Hit rate",
                "Of the requests that were searched for: the share into which memories went.",
                "percentunit",
                (Query(f"{rate(EXCHANGES, more=_USED)} / {rate(EXCHANGES, more=ASKED)}"),),
                small=True,
            ),
            Panel(
                "Memory failed",
                "Share of requests that had to do without: late, overloaded, or store or model away. They passed all"
                " the same.",
                "percentunit",
                (Query(f"({or_none(rate(EXCHANGES, more=FAILED))}) / {rate(EXCHANGES)}"),),
                small=True,
                warn_above=0.01,
            ),
            Panel(
                "Added latency p99",
                "The whole read path, in the sidecar. Envoy's own part stands on the board Envoy's view.",
                "s",
                (Query(quantile(0.99, "memory_extproc_recall_seconds", more='stage="total"')),),
                small=True,
                warn_above=0.15,
            ),
            Panel(
                "Store",
                "1 while the memory store answers on every pod.",
                "bool_on_off",
                (Query(gauge("memory_extproc_store_up", "min")),),
                small=True,
                warn_below=1,
            ),
            Panel(
                "Canary",
                "Share of what a caller who is nobody is known to have that recall finds, on the worst pod. No figure"
                " until it is asked for the first time.",
                "percentunit",
                (Query(gauge("memory_extproc_canary_recall", "min")),),
                small=True,
                warn_below=0.8,
            ),
            Panel(
                "Turns waiting",
                "Accepted, not learned yet.",
                "suffix: turns",
                (Query(gauge("memory_extproc_journal_depth")),),
                small=True,
                warn_above=1000,
            ),
        ),
    ),
    Row(
        "Requests",
        (
            Panel(
                "Requests by outcome",
                "How each exchange left us; the words are explained in docs/operations.md.",
                "reqps",
                (Query(rate(EXCHANGES, "outcome"), "{{outcome}}"),),
                stacked=True,
            ),
            Panel(
                "Requests by API",
                "Which LLM API the bodies spoke.",
                "reqps",
                (Query(rate(EXCHANGES, "dialect"), "{{dialect}}"),),
                stacked=True,
            ),
            Panel(
                "Recalls by path",
                "hybrid is the rule; lexical: the embedding model was late or away; store: the caller's memories are not held in process.",
                "reqps",
                (Query(rate("memory_extproc_recall_path_total", "path"), "{{path}}"),),
                stacked=True,
            ),
            Panel(
                "What went wrong",
                "Each word has a line in docs/operations.md that says what to do.",
                "reqps",
                (
                    Query(or_none(rate(EXCHANGES, "outcome", FAILED)), "{{outcome}}"),
                    Query(or_none(rate("memory_extproc_stream_faults_total", "kind")), "stream: {{kind}}"),
                ),
            ),
        ),
    ),
    Row(
        "Added latency",
        (
            Panel(
                "Read path",
                "From the request's body to the reply to Envoy. Its bound is recall.deadline.",
                "s",
                percentiles("memory_extproc_recall_seconds", 'stage="total"'),
            ),
            Panel(
                "Read path, all of it",
                "How many recalls took how long. Two bands are two kinds of callers: those whose memories are held in process, and those read from the store.",
                "s",
                buckets("memory_extproc_recall_seconds", 'stage="total"'),
                heatmap=True,
            ),
            Panel(
                "By stage, p95",
                "Where the time goes.",
                "s",
                (Query(quantile(0.95, "memory_extproc_recall_seconds", "stage", 'stage!="total"'), "{{stage}}"),),
            ),
        ),
    ),
    Row(
        "What is injected",
        (
            Panel(
                "Memories in a block",
                "Of those requests that got one.",
                "suffix: memories",
                (
                    Query(mean("memory_extproc_recall_injected"), "mean"),
                    Query(quantile(0.95, "memory_extproc_recall_injected"), "p95"),
                ),
            ),
            Panel(
                "Tokens in a block",
                "Estimated; what memory adds to a prompt.",
                "suffix: tokens",
                (
                    Query(mean("memory_extproc_injected_tokens"), "mean"),
                    Query(quantile(0.95, "memory_extproc_injected_tokens"), "p95"),
                ),
            ),
            Panel(
                "Prompt cache",
                "Share of the prompts' tokens that came from the provider's cache, by outcome. With memory it should be no lower than without.",
                "percentunit",
                (
                    Query(
                        or_none(
                            f"{rate('memory_extproc_llm_cached_tokens_total', 'outcome')} / {rate('memory_extproc_llm_prompt_tokens_total', 'outcome')}"
                        ),
                        "{{outcome}}",
                    ),
                ),
            ),
            Panel(
                "Tokens added to a request",
                "Estimated, by listed tenant and by side of the comparison; what memory costs per exchange.",
                "suffix: tokens",
                (Query(_per("memory_extproc_arm_added_tokens_total", "memory_extproc_arm_exchanges_total"), _ARM),),
            ),
            Panel(
                "Prompt cache by side",
                "Share of the prompts' tokens that came from the provider's cache: with memory, without (control), in shadow.",
                "percentunit",
                (
                    Query(
                        or_none(
                            _per("memory_extproc_arm_cached_tokens_total", "memory_extproc_arm_prompt_tokens_total")
                        ),
                        _ARM,
                    ),
                ),
            ),
            Panel(
                "Blocks put back",
                "What became of the blocks that a conversation was given before.",
                "reqps",
                (Query(or_none(rate("memory_extproc_replays_total", "outcome")), "{{outcome}}"),),
                stacked=True,
            ),
        ),
    ),
    Row(
        "Memory API and consent",
        (
            Panel(
                "Calls",
                "Of the memory API, gRPC and HTTP together, by method and by how they ended.",
                "reqps",
                (Query(or_none(rate("memory_extproc_api_seconds_count", "method, code")), "{{method}}: {{code}}"),),
                stacked=True,
            ),
            Panel(
                "Time of a call, p95",
                "By method of the memory API; a forget waits for its receipt alone.",
                "s",
                (Query(or_none(quantile(0.95, "memory_extproc_api_seconds", "method")), "{{method}}"),),
            ),
            Panel(
                "Turned away",
                "Calls that were refused before anything was done, by the reason: credentials, roles, rate limit, audit log.",
                "reqps",
                (Query(or_none(rate("memory_extproc_api_denied_total", "reason")), "{{reason}}"),),
                stacked=True,
            ),
            Panel(
                "Consent",
                "Requests without memory because their caller chose so, or chose nothing where that is needed; turns not kept for it; choices made.",
                "reqps",
                (
                    Query(or_none(rate(EXCHANGES, more=_CONSENT)), "requests without memory"),
                    Query(or_none(rate("memory_extproc_turns_total", more=_CONSENT)), "turns not kept"),
                    Query(
                        or_none(rate("memory_extproc_api_seconds_count", more='method="SetConsent"')),
                        "choices made",
                    ),
                ),
            ),
        ),
    ),
    Row(
        "Saturation",
        (
            Panel(
                "In flight",
                "Streams open, and recalls among them. Requests beyond the limit, which adapts, are overloaded.",
                "short",
                (
                    Query(gauge("memory_extproc_streams_open"), "streams"),
                    Query(gauge("memory_extproc_recalls_running"), "recalls"),
                    Query(gauge("memory_extproc_recall_limit"), "limit"),
                ),
            ),
            Panel(
                "CPU",
                "Of each pod, in cores. One process uses about one core and a half.",
                "suffix: cores",
                (Query(f"rate(process_cpu_seconds_total{{{OURS}}}[$__rate_interval])", "{{instance}}"),),
            ),
            Panel(
                "Memory",
                "Resident, of each pod; and what is held of it for memories and for open bodies.",
                "bytes",
                (
                    Query(f"process_resident_memory_bytes{{{OURS}}}", "{{instance}}"),
                    Query(gauge("memory_extproc_partition_bytes"), "memories"),
                    Query(gauge("memory_extproc_process_bytes"), "bodies"),
                ),
            ),
            Panel(
                "Versions",
                "What runs, by version; two during an upgrade.",
                "suffix: pods",
                (Query(f"count by (version) (memory_extproc_build_info{{{OURS}}})", "{{version}}"),),
            ),
        ),
    ),
)
