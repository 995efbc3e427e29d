"""Every metric the sidecar exposes. No label ever holds a user, session or memory id."""

from __future__ import annotations

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
        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, help_text, labels, registry=registry)

        def gauge(name: str, help_text: str, *labels: str) -> Gauge:
            return Gauge(PREFIX + name, help_text, labels, registry=registry)

        def histogram(name: str, help_text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(PREFIX + name, help_text, labels, buckets=buckets, registry=registry)

        self.registry = registry
        self.exchanges = counter(
            "exchanges", "HTTP exchanges by LLM dialect and by how they left us.", "dialect", "outcome"
        )
        self.recall_seconds = histogram(
            "recall_seconds", "Time spent on the read path by stage.", RECALL_BUCKETS, "stage"
        )
        self.recall_candidates = histogram(
            "recall_candidates", "Memories a search came upon, before ranking.", COUNT_BUCKETS
        )
        self.recall_injected = histogram("recall_injected", "Memories in an injected block.", COUNT_BUCKETS)
        self.injected_tokens = histogram("injected_tokens", "Estimated tokens of a block.", TOKEN_BUCKETS)
        self.recalls_running = gauge("recalls_running", "Recalls in flight.")
        self.recall_deadline = gauge("recall_deadline_seconds", "Bound of the read path, as configured.")
        self.recall_path = counter("recall_path", "Recalls by the path that was taken.", "path")
        self.shared_searches = counter(
            "shared_searches", "Searches of memories that a caller shares, by how they ended.", "scope", "outcome"
        )
        self.close_readings = counter(
            "close_readings", "Rankings to be read word by word, by how that ended.", "outcome"
        )
        self.reranks = counter("reranks", "Rankings offered to a reranker, by how that ended.", "outcome")
        self.replays = counter("replays", "Requests by what became of the blocks given before.", "outcome")
        self.replayed_tokens = histogram(
            "replayed_tokens", "Estimated tokens of the blocks put back into a request.", REPLAYED_BUCKETS
        )
        self.prompt_tokens = counter(
            "llm_prompt_tokens", "Tokens of requests, as the provider counted them.", "dialect", "outcome"
        )
        self.cached_tokens = counter(
            "llm_cached_tokens", "Those of them that came from its prompt cache.", "dialect", "outcome"
        )
        self.arm_exchanges = counter(
            "arm_exchanges", "Exchanges with a caller by side of the comparison.", "tenant", "arm"
        )
        self.arm_added_tokens = counter(
            "arm_added_tokens", "Estimated tokens that memory added to them.", "tenant", "arm"
        )
        self.arm_prompt_tokens = counter(
            "arm_prompt_tokens", "Tokens of their requests, as the provider counted them.", "tenant", "arm"
        )
        self.arm_cached_tokens = counter(
            "arm_cached_tokens", "Those of them that came from its prompt cache.", "tenant", "arm"
        )
        self.turns = counter("turns", "Completed exchanges by what became of them.", "outcome")
        self.journal_depth = gauge("journal_depth", "Turns in the journal that are not learned yet.")
        self.journal_oldest_seconds = gauge("journal_oldest_seconds", "Age of the oldest of them; 0 if none.")
        self.journal_dead = gauge("journal_dead_letters", "Turns given up on, kept for review.")
        self.extraction_triggers = counter(
            "extraction_triggers", "Batches handed to the extractor by what made them due.", "trigger"
        )
        self.extraction_seconds = histogram(
            "extraction_seconds",
            "Time to extract facts from a batch of turns.",
            EXTRACTION_BUCKETS,
            "extractor",
        )
        self.extractions = counter("extractions", "Batches extracted.", "extractor", "outcome")
        self.reconcile = counter("reconcile", "What became of extracted facts.", "decision")
        self.withheld = counter("withheld", "Finds in people's words that were not kept as said.", "kind")
        self.remembered = counter("remembered", "Messages of turns by what became of them.", "role", "decision")
        self.store_seconds = histogram(
            "store_operations_seconds", "Calls to the memory store.", STORE_BUCKETS, "operation", "outcome"
        )
        self.store_up = gauge("store_up", "1 while the memory store answers, else 0.")
        self.coordination_up = gauge("coordination_up", "1 while what replicas share answers, else 0.")
        self.partitions = gauge("partitions", "Owners whose memories are held in process.")
        self.partition_bytes = gauge("partition_bytes", "Bytes held by them.")
        self.partition_fills = counter("partition_fills", "Fills of a partition from the store.", "outcome")
        self.llm_requests = counter("llm_requests", "Calls of language models.", "role", "outcome")
        self.llm_tokens = counter("llm_tokens", "Tokens, as language models counted them.", "role", "direction")
        self.forgets = counter("forgets", "Accepted calls to forget.", "scope", "outcome")
        self.forgets_pending = gauge("forgets_pending", "Forgets that are not complete yet.")
        self.forget_oldest_seconds = gauge("forget_oldest_seconds", "Age of the oldest of them; 0 if none.")
        self.api_seconds = histogram(
            "api_seconds", "Calls of the memory API by how they ended.", STORE_BUCKETS, "method", "code"
        )
        self.api_denied = counter("api_denied", "Calls turned away before anything was done.", "reason")
        self.streams_open = gauge("streams_open", "ext_proc streams open now.")
        self.stream_faults = counter("stream_faults", "Streams ended early by a fault of ours or Envoy's.", "kind")
        self.process_bytes = gauge("process_bytes", "Bytes of bodies held for open exchanges.")
        Info(PREFIX + "build", "The running version.", registry=registry).info({"version": version})
