"""Every metric the sidecar exposes. No label ever holds a user, session or memory id."""

from __future__ import annotations

import math

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

PREFIX = "memory_extproc_"
# From a quarter of a millisecond to a second, close together around the deadline's usual 150 ms.
RECALL_BUCKETS = (
    0.00025, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0,
)  # fmt: skip
STORE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
EXTRACTION_BUCKETS = (0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
COUNT_BUCKETS = (0, 1, 2, 3, 5, 8, 13, 20, 50, 100, 200)
REPLAYED_BUCKETS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
TOKEN_BUCKETS = (0, 16, 32, 64, 128, 256, 512, 1024, 2048)


class Metrics:
    """The collectors, made on the registry that is passed in so that tests can run in parallel."""

    def __init__(self, registry: CollectorRegistry, version: str) -> None:
        self.registry = registry
        make = _Make(registry)
        self._reading(make)
        self._learning(make)
        self._keeping(make)
        self._serving(make)
        Info(PREFIX + "build", "The running version.", registry=registry).info({"version": version})

    def _reading(self, make: _Make) -> None:
        self.exchanges = make.counter(
            "exchanges", "HTTP exchanges by LLM dialect and outcome.", "dialect", "outcome"
        )
        self.recall_seconds = make.histogram(
            "recall_seconds", "Duration of a recall by stage.", RECALL_BUCKETS, "stage"
        )
        self.recall_candidates = make.histogram(
            "recall_candidates", "Memories found by a search, before ranking.", COUNT_BUCKETS
        )
        self.recall_injected = make.histogram("recall_injected", "Memories per injected block.", COUNT_BUCKETS)
        self.injected_tokens = make.histogram(
            "injected_tokens", "Estimated tokens per injected block.", TOKEN_BUCKETS
        )
        self.recalls_running = make.gauge("recalls_running", "Recalls that are running.")
        self.recall_limit = make.gauge(
            "recall_limit",
            "Requests with recall worked on at a time; adapts to the load, up to recall.max_concurrent.",
        )
        self.recall_deadline = make.gauge("recall_deadline_seconds", "Configured deadline of a recall.")
        self.signals = make.counter(
            "signals", "Questions by the source of their classification: request, classifier or rules.", "source"
        )
        self.classifications = make.counter(
            "classifications", "Calls of the semantic router's classifier by outcome.", "outcome"
        )
        self.calibration = make.gauge(
            "calibration",
            "1 for the calibration in force: weights fitted for this embedding model (fitted), packaged weights "
            "with its cosines mapped to their scale (aligned), or lexical features only (words).",
            "calibration",
        )
        self.recall_path = make.counter("recall_path", "Recalls by path.", "path")
        self.shared_searches = make.counter(
            "shared_searches", "Searches of shared memories by scope and outcome.", "scope", "outcome"
        )
        self.close_readings = make.counter(
            "close_readings", "Rankings by outcome of the word-by-word comparison (late interaction).", "outcome"
        )
        self.reranks = make.counter("reranks", "Rankings offered to a reranker by outcome.", "outcome")
        self.profiles = make.counter(
            "profiles",
            "Requests by whether the caller's profile was injected, where inject.profile is on.",
            "outcome",
        )
        for outcome in ("told", "not_told", "unread"):  # there from the start: the first of them is a rise
            self.profiles.labels(outcome)
        self.replays = make.counter("replays", "Requests by outcome of putting earlier blocks back.", "outcome")
        self.replayed_tokens = make.histogram(
            "replayed_tokens", "Estimated tokens of the blocks put back into a request.", REPLAYED_BUCKETS
        )
        self.prompt_tokens = make.counter(
            "llm_prompt_tokens", "Prompt tokens as counted by the provider.", "dialect", "outcome"
        )
        self.cached_tokens = make.counter(
            "llm_cached_tokens", "Prompt tokens that came from the provider's prompt cache.", "dialect", "outcome"
        )
        self._comparing(make)

    def _comparing(self, make: _Make) -> None:
        self.arm_exchanges = make.counter(
            "arm_exchanges", "Exchanges by group of a gradual rollout.", "tenant", "arm"
        )
        self.arm_added_tokens = make.counter(
            "arm_added_tokens",
            "Estimated tokens that memory added, by group of a gradual rollout.",
            "tenant",
            "arm",
        )
        self.arm_prompt_tokens = make.counter(
            "arm_prompt_tokens",
            "Prompt tokens as counted by the provider, by group of a gradual rollout.",
            "tenant",
            "arm",
        )
        self.arm_cached_tokens = make.counter(
            "arm_cached_tokens", "Prompt tokens that came from the provider's prompt cache.", "tenant", "arm"
        )

    def _learning(self, make: _Make) -> None:
        self.turns = make.counter("turns", "Completed exchanges by outcome for learning.", "outcome")
        self.accepting_bytes = make.gauge(
            "accepting_bytes",
            "Bytes of text of turns on their way into the journal.",
        )
        self.turns_undecided = make.gauge(
            "turns_undecided", "Accepted turns that wait in the intake log until they can be journalled."
        )
        self.intake_aside = make.counter(
            "intake_unreadable", "Unreadable parts of the intake log that were moved aside, by reason.", "why"
        )
        for why in ("cut", "damaged", "newer_version", "key_gone"):
            self.intake_aside.labels(why)
        self.journal_depth = make.gauge("journal_depth", "Turns in the journal that are not learned yet.")
        self.journal_oldest_seconds = make.gauge(
            "journal_oldest_seconds", "Age of the oldest one; 0 if there is none."
        )
        self.journal_parts = make.gauge(
            "journal_parts", "Parts of the shared journal that this replica learns from; 0 while its store fails."
        )
        self.journal_dead = make.gauge(
            "journal_dead_letters", "Dead letters: turns that failed too often and are kept for review."
        )
        self.extraction_triggers = make.counter(
            "extraction_triggers", "Batches handed to the extractor by trigger.", "trigger"
        )
        self.extraction_seconds = make.histogram(
            "extraction_seconds", "Time to extract facts from a batch of turns.", EXTRACTION_BUCKETS, "extractor"
        )
        self.extractions = make.counter(
            "extractions", "Extracted batches by extractor and outcome.", "extractor", "outcome"
        )
        self.reconcile = make.counter("reconcile", "Extracted facts by decision.", "decision")
        self.compressions = make.counter("compressions", "Long chats by outcome of compression.", "outcome")
        self.compressed_tokens = make.counter(
            "compressed_tokens", "Estimated tokens of compressed requests, before and after.", "when"
        )
        self.chat_commands = make.counter(
            "chat_commands", "Commands to remember or forget in chats, by kind.", "act"
        )
        self.command_doubts = make.counter(
            "chat_command_doubts", "Possible commands that a model was asked about, by outcome.", "outcome"
        )
        self.topic_checks = make.counter(
            "topic_checks", "Topic decisions by stage and verdict.", "stage", "verdict"
        )
        self.topics = make.counter("topics", "Topics opened and closed, by outcome.", "outcome")
        self.summaries = make.counter("summaries", "Summaries of topics and sessions by author.", "of", "by")
        self.withheld = make.counter(
            "withheld", "Secrets and private data that were masked or dropped, by kind.", "kind"
        )
        self.remembered = make.counter("remembered", "Messages by role and decision.", "role", "decision")

    def _keeping(self, make: _Make) -> None:
        self.store_seconds = make.histogram(
            "store_operations_seconds",
            "Duration of calls to the memory store.",
            STORE_BUCKETS,
            "operation",
            "outcome",
        )
        self.store_up = make.gauge("store_up", "1 while the memory store takes writes and answers reads, else 0.")
        self.coordination_up = make.gauge(
            "coordination_up", "1 while the coordination store (Redis or SQLite) answers, else 0."
        )
        self.coordination_restoring = make.gauge(
            "coordination_restoring",
            "1 while forgets and consent choices lost by Redis are being restored; memory is off until it is 0.",
        )
        self.coordination_losses = make.counter(
            "coordination_losses", "Times that Redis had lost data, by kind.", "kind"
        )
        for kind in ("wiped", "rolled_back", "replaced"):  # the first of them is a rise
            self.coordination_losses.labels(kind)
        self.files_set_aside = make.counter(
            "files_set_aside", "Unreadable files of the data directory that were renamed.", "file"
        )
        self.dead_directories = make.gauge(
            "dead_directories", "Data directories of dead replicas that hold, or may hold, accepted turns."
        )
        self.files_taken_away = make.gauge(
            "files_taken_away", "Files of the data directory that were deleted or replaced while in use.", "why"
        )
        self.rows_unreadable = make.counter(
            "rows_unreadable", "Rows of the store that could not be read, by reason.", "why"
        )
        for why in ("no_memory", "key_gone", "damaged"):
            self.rows_unreadable.labels(why)
        self.partitions = make.gauge("partitions", "Owners whose memories are cached in process.")
        self.partition_bytes = make.gauge("partition_bytes", "Bytes of memories cached in process.")
        self.partition_fills = make.counter(
            "partition_fills", "Loads of an owner's memories into the cache by outcome.", "outcome"
        )

    def _serving(self, make: _Make) -> None:
        self.llm_usable = make.gauge(
            "llm_usable",
            "1 while the answers of a language model are usable, by a probe at start and its calls.",
            "role",
        )
        self.llm_requests = make.counter(
            "llm_requests", "Calls of language models by role and outcome.", "role", "outcome"
        )
        self.llm_tokens = make.counter("llm_tokens", "Tokens as counted by language models.", "role", "direction")
        self.forgets = make.counter("forgets", "Accepted forgets by scope and outcome.", "scope", "outcome")
        self.forgets_pending = make.gauge("forgets_pending", "Accepted forgets that are not complete.")
        self.forget_oldest_seconds = make.gauge(
            "forget_oldest_seconds", "Age of the oldest one; 0 if there is none."
        )
        self.retention_owners = make.counter(
            "retention_owners", "Owners processed by retention, by outcome.", "outcome"
        )
        self.retired = make.counter("retired", "Memories removed or merged by retention, by reason.", "reason")
        self.retention_rounds = make.counter("retention_rounds", "Rounds of retention over all owners.")
        self.retention_last = make.gauge(
            "retention_last_round_timestamp_seconds", "Time of the last completed round, or of the process start."
        )
        self.api_seconds = make.histogram(
            "api_seconds", "Duration of memory API calls by method and code.", STORE_BUCKETS, "method", "code"
        )
        self.api_denied = make.counter("api_denied", "Refused memory API calls by reason.", "reason")
        self.canary_recall = make.gauge(
            "canary_recall", "Share of the canary's memories that recall found; NaN before the first check."
        )
        self.canary_recall.set(math.nan)
        self.certificate_expiry = make.gauge(
            "certificate_expiry_timestamp_seconds", "Expiry time of the certificate of a port.", "port"
        )
        self.reloads = make.counter("configuration_reloads", "Configuration reloads by outcome.", "outcome")
        self.reload_failed = make.gauge(
            "configuration_reload_failed",
            "1 while the newest configuration is invalid and an older one is in effect.",
        )
        self.restart_needed = make.gauge(
            "configuration_restart_needed", "Changed settings that take effect at the next start."
        )
        self.streams_open = make.gauge("streams_open", "Open ext_proc streams.")
        self.streams = make.counter(
            "streams", "ext_proc streams by body modes of Envoy.", "request_body", "response_body"
        )
        self.stream_faults = make.counter(
            "stream_faults", "Streams that ended early because of a fault, by kind.", "kind"
        )
        self.damaged_events = make.counter(
            "damaged_events",
            "Events of streamed answers that are not JSON; the answer is learned up to that event.",
        )
        self.process_bytes = make.gauge("process_bytes", "Bytes of bodies held for open exchanges.")

    def unreadable(self, why: str, rows: int = 1) -> None:
        """*rows* of the store cannot be read, after what *why* names."""
        self.rows_unreadable.labels(why).inc(rows)


class _Make:
    """Names the collectors and puts them where they belong."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, help_text, labels, registry=self._registry)

    def gauge(self, name: str, help_text: str, *labels: str) -> Gauge:
        return Gauge(PREFIX + name, help_text, labels, registry=self._registry)

    def histogram(self, name: str, help_text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(PREFIX + name, help_text, labels, buckets=buckets, registry=self._registry)
