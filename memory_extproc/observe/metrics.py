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
            "exchanges", "HTTP exchanges by LLM dialect and by how they left us.", "dialect", "outcome"
        )
        self.recall_seconds = make.histogram(
            "recall_seconds", "Time spent on the read path by stage.", RECALL_BUCKETS, "stage"
        )
        self.recall_candidates = make.histogram(
            "recall_candidates", "Memories a search came upon, before ranking.", COUNT_BUCKETS
        )
        self.recall_injected = make.histogram("recall_injected", "Memories in an injected block.", COUNT_BUCKETS)
        self.injected_tokens = make.histogram("injected_tokens", "Estimated tokens of a block.", TOKEN_BUCKETS)
        self.recalls_running = make.gauge("recalls_running", "Recalls in flight.")
        self.recall_deadline = make.gauge("recall_deadline_seconds", "Bound of the read path, as configured.")
        self.signals = make.counter(
            "signals",
            "Questions by who says what kind they are: the request, the classifier or our rules.",
            "source",
        )
        self.classifications = make.counter(
            "classifications", "Questions put to the semantic router's classifier, by how that ended.", "outcome"
        )
        self.calibration = make.gauge(
            "calibration",
            "What recall's weights rest on, 1 for the one in force: weights of this embedding model (fitted), the "
            "packaged weights with its cosines put on their scale (aligned), or words alone (words).",
            "calibration",
        )
        self.recall_path = make.counter("recall_path", "Recalls by the path that was taken.", "path")
        self.shared_searches = make.counter(
            "shared_searches", "Searches of memories that a caller shares, by how they ended.", "scope", "outcome"
        )
        self.close_readings = make.counter(
            "close_readings", "Rankings to be read word by word, by how that ended.", "outcome"
        )
        self.reranks = make.counter("reranks", "Rankings offered to a reranker, by how that ended.", "outcome")
        self.profiles = make.counter(
            "profiles",
            "Requests by whether they were told who their caller is, where that is asked for.",
            "outcome",
        )
        for outcome in ("told", "not_told", "unread"):  # there from the start: the first of them is a rise
            self.profiles.labels(outcome)
        self.replays = make.counter("replays", "Requests by what became of the blocks given before.", "outcome")
        self.replayed_tokens = make.histogram(
            "replayed_tokens", "Estimated tokens of the blocks put back into a request.", REPLAYED_BUCKETS
        )
        self.prompt_tokens = make.counter(
            "llm_prompt_tokens", "Tokens of requests, as the provider counted them.", "dialect", "outcome"
        )
        self.cached_tokens = make.counter(
            "llm_cached_tokens", "Those of them that came from its prompt cache.", "dialect", "outcome"
        )
        self._comparing(make)

    def _comparing(self, make: _Make) -> None:
        self.arm_exchanges = make.counter(
            "arm_exchanges", "Exchanges with a caller by side of the comparison.", "tenant", "arm"
        )
        self.arm_added_tokens = make.counter(
            "arm_added_tokens", "Estimated tokens that memory added to them.", "tenant", "arm"
        )
        self.arm_prompt_tokens = make.counter(
            "arm_prompt_tokens", "Tokens of their requests, as the provider counted them.", "tenant", "arm"
        )
        self.arm_cached_tokens = make.counter(
            "arm_cached_tokens", "Those of them that came from its prompt cache.", "tenant", "arm"
        )

    def _learning(self, make: _Make) -> None:
        self.turns = make.counter("turns", "Completed exchanges by what became of them.", "outcome")
        self.turns_undecided = make.gauge(
            "turns_undecided", "Accepted turns that wait in the intake log to be decided or journalled."
        )
        self.intake_aside = make.counter(
            "intake_unreadable", "Pieces of the intake log that could not be read and were moved aside.", "why"
        )
        for why in ("cut", "damaged", "newer_version", "key_gone"):
            self.intake_aside.labels(why)
        self.journal_depth = make.gauge("journal_depth", "Turns in the journal that are not learned yet.")
        self.journal_oldest_seconds = make.gauge("journal_oldest_seconds", "Age of the oldest of them; 0 if none.")
        self.journal_parts = make.gauge(
            "journal_parts", "Parts of the shared journal this replica learns from; 0 while its store fails."
        )
        self.journal_dead = make.gauge("journal_dead_letters", "Turns given up on, kept for review.")
        self.extraction_triggers = make.counter(
            "extraction_triggers", "Batches handed to the extractor by what made them due.", "trigger"
        )
        self.extraction_seconds = make.histogram(
            "extraction_seconds",
            "Time to extract facts from a batch of turns.",
            EXTRACTION_BUCKETS,
            "extractor",
        )
        self.extractions = make.counter("extractions", "Batches extracted.", "extractor", "outcome")
        self.reconcile = make.counter("reconcile", "What became of extracted facts.", "decision")
        self.compressions = make.counter(
            "compressions", "Long chats by whether a state went in place of older messages.", "outcome"
        )
        self.compressed_tokens = make.counter(
            "compressed_tokens",
            "Estimated tokens of compressed requests, as they came and as they went on.",
            "when",
        )
        self.chat_commands = make.counter(
            "chat_commands", "What people told the assistant to keep or to forget, by what.", "act"
        )
        self.command_doubts = make.counter(
            "chat_command_doubts", "Messages a model was asked about, by what came of it.", "outcome"
        )
        self.topic_checks = make.counter(
            "topic_checks", "Turns by who said whether they go on with their topic, and what.", "stage", "verdict"
        )
        self.topics = make.counter(
            "topics", "Topics that were opened, and those that ended, by what became of them.", "outcome"
        )
        self.summaries = make.counter(
            "summaries", "Summaries of topics and sessions, by who made them.", "of", "by"
        )
        self.withheld = make.counter("withheld", "Finds in people's words that were not kept as said.", "kind")
        self.remembered = make.counter(
            "remembered", "Messages of turns by what became of them.", "role", "decision"
        )

    def _keeping(self, make: _Make) -> None:
        self.store_seconds = make.histogram(
            "store_operations_seconds", "Calls to the memory store.", STORE_BUCKETS, "operation", "outcome"
        )
        self.store_up = make.gauge("store_up", "1 while the memory store takes writes and answers reads, else 0.")
        self.coordination_up = make.gauge("coordination_up", "1 while what replicas share answers, else 0.")
        self.coordination_restoring = make.gauge(
            "coordination_restoring",
            "1 while Redis lacks forgets and choices that it was given: callers have no memory until it is 0.",
        )
        self.coordination_losses = make.counter(
            "coordination_losses", "Times that Redis was found without what it was given, by how.", "kind"
        )
        for kind in ("wiped", "rolled_back", "replaced"):  # the first of them is a rise
            self.coordination_losses.labels(kind)
        self.files_set_aside = make.counter(
            "files_set_aside", "Files of the data directory that could not be read and were renamed.", "file"
        )
        self.dead_directories = make.gauge(
            "dead_directories",
            "Data directories that ended with accepted turns, or without saying, and did not come back.",
        )
        self.files_taken_away = make.gauge(
            "files_taken_away", "Files of the data directory deleted or replaced while in use, now.", "why"
        )
        self.rows_unreadable = make.counter(
            "rows_unreadable", "Rows of the store that were left out of an answer to us.", "why"
        )
        for why in ("no_memory", "key_gone", "damaged"):
            self.rows_unreadable.labels(why)
        self.partitions = make.gauge("partitions", "Owners whose memories are held in process.")
        self.partition_bytes = make.gauge("partition_bytes", "Bytes held by them.")
        self.partition_fills = make.counter("partition_fills", "Fills of a partition from the store.", "outcome")

    def _serving(self, make: _Make) -> None:
        self.llm_usable = make.gauge(
            "llm_usable",
            "1 while a language model's answers can be used, as a probe at start and calls say.",
            "role",
        )
        self.llm_requests = make.counter("llm_requests", "Calls of language models.", "role", "outcome")
        self.llm_tokens = make.counter(
            "llm_tokens", "Tokens, as language models counted them.", "role", "direction"
        )
        self.forgets = make.counter("forgets", "Accepted calls to forget.", "scope", "outcome")
        self.forgets_pending = make.gauge("forgets_pending", "Forgets that are not complete yet.")
        self.forget_oldest_seconds = make.gauge("forget_oldest_seconds", "Age of the oldest of them; 0 if none.")
        self.retention_owners = make.counter(
            "retention_owners", "Owners whose memories were seen to by retention.", "outcome"
        )
        self.retired = make.counter("retired", "Memories by what retention made of them.", "reason")
        self.retention_rounds = make.counter("retention_rounds", "Rounds of retention over all owners.")
        self.retention_last = make.gauge(
            "retention_last_round_timestamp_seconds", "When the last one ended, or this process began."
        )
        self.api_seconds = make.histogram(
            "api_seconds", "Calls of the memory API by how they ended.", STORE_BUCKETS, "method", "code"
        )
        self.api_denied = make.counter("api_denied", "Calls turned away before anything was done.", "reason")
        self.canary_recall = make.gauge(
            "canary_recall", "Share of what the canary is known to remember that was found; NaN before it is asked."
        )
        self.canary_recall.set(math.nan)
        self.certificate_expiry = make.gauge(
            "certificate_expiry_timestamp_seconds", "When the certificate of a port ends.", "port"
        )
        self.reloads = make.counter(
            "configuration_reloads", "Changed configurations by what became of them.", "outcome"
        )
        self.reload_failed = make.gauge(
            "configuration_reload_failed", "1 while the newest configuration is refused and an older one holds."
        )
        self.restart_needed = make.gauge(
            "configuration_restart_needed", "Keys whose new values take effect with the next start."
        )
        self.streams_open = make.gauge("streams_open", "ext_proc streams open now.")
        self.streams = make.counter(
            "streams", "ext_proc streams by how Envoy shows the two bodies.", "request_body", "response_body"
        )
        self.stream_faults = make.counter(
            "stream_faults", "Streams ended early by a fault of ours or Envoy's.", "kind"
        )
        self.damaged_events = make.counter(
            "damaged_events", "Events of streamed answers that are no JSON; the answer is learned up to them."
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
