"""From an accepted turn to a memory."""

from __future__ import annotations

from scripts.dashboards.panels import Panel, Query, Row, buckets, gauge, or_none, quantile, rate

_BEFORE = rate("memory_extproc_compressed_tokens_total", more='when="before"')
_AFTER = rate("memory_extproc_compressed_tokens_total", more='when="after"')
_SPARED = f"1 - {_AFTER} / {_BEFORE}"

LEARNING = (
    Row(
        "Journal",
        (
            Panel(
                "Turns waiting",
                "Accepted and not learned yet. It grows while a model or the store is away, and falls by itself afterwards.",
                "suffix: turns",
                (Query(gauge("memory_extproc_journal_depth"), "waiting"),),
            ),
            Panel(
                "Learner lag",
                "How long the oldest accepted turn has waited to be learned. It grows where learning has too little CPU, or a model or the store is away.",
                "s",
                (Query(gauge("memory_extproc_journal_oldest_seconds", "max")),),
                warn_above=600,
            ),
            Panel(
                "Undecided turns",
                "Accepted turns in the pods' intake logs that cannot be decided or journalled now: consent or the journal cannot be asked.",
                "suffix: turns",
                (Query(gauge("memory_extproc_turns_undecided"), "undecided"),),
                warn_above=100,
            ),
            Panel(
                "Turns by outcome",
                "What became of completed exchanges: journalled is the rule.",
                "suffix: turns/s",
                (Query(rate("memory_extproc_turns_total", "outcome"), "{{outcome}}"),),
                stacked=True,
            ),
            Panel(
                "Dead letters",
                "Turns given up on: memory-extproc learn dead-letters lists them, learn retry tries them again.",
                "suffix: turns",
                (Query(gauge("memory_extproc_journal_dead_letters")),),
                warn_above=1,
            ),
        ),
    ),
    Row(
        "What is kept",
        (
            Panel(
                "Messages",
                "Of turns, by what became of them.",
                "suffix: messages/s",
                (Query(rate("memory_extproc_remembered_total", "role, decision"), "{{role}}: {{decision}}"),),
                stacked=True,
            ),
            Panel(
                "Facts",
                "What became of extracted facts.",
                "suffix: facts/s",
                (Query(or_none(rate("memory_extproc_reconcile_total", "decision")), "{{decision}}"),),
                stacked=True,
            ),
            Panel(
                "Withheld",
                "Secrets, identifiers and instructions found in people's words and not kept as said.",
                "suffix: finds/s",
                (Query(or_none(rate("memory_extproc_withheld_total", "kind")), "{{kind}}"),),
                stacked=True,
            ),
            Panel(
                "Forgets",
                "Accepted calls to forget, by scope and how they ended.",
                "suffix: forgets/s",
                (Query(or_none(rate("memory_extproc_forgets_total", "scope, outcome")), "{{scope}}: {{outcome}}"),),
                stacked=True,
            ),
            Panel(
                "Forgets that are not complete",
                "From a forget's receipt to the end of all that it covers, in stores, journals and files of every pod.",
                "suffix: forgets",
                (Query(or_none(gauge("memory_extproc_forgets_pending", "max")), "pending"),),
            ),
            Panel(
                "Forget latency",
                "Age of the oldest forget that is not complete, and how long its caller waits for a receipt.",
                "s",
                (
                    Query(or_none(gauge("memory_extproc_forget_oldest_seconds", "max")), "oldest pending"),
                    Query(
                        or_none(quantile(0.95, "memory_extproc_api_seconds", more='method=~"Forget.*"')),
                        "receipt, p95",
                    ),
                ),
            ),
        ),
    ),
    Row(
        "Extraction",
        (
            Panel(
                "Batches",
                "Extracted, by extractor and outcome.",
                "suffix: batches/s",
                (
                    Query(
                        or_none(rate("memory_extproc_extractions_total", "extractor, outcome")),
                        "{{extractor}}: {{outcome}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "Time for a batch",
                "Until a batch of turns is extracted: p95, by extractor.",
                "s",
                (
                    Query(
                        or_none(quantile(0.95, "memory_extproc_extraction_seconds", "extractor")), "{{extractor}}"
                    ),
                ),
            ),
            Panel(
                "Time for a batch, all of them",
                "How many batches took how long until they were extracted.",
                "s",
                buckets("memory_extproc_extraction_seconds"),
                heatmap=True,
            ),
            Panel(
                "Calls of language models",
                "By what they are for, and how they ended.",
                "suffix: calls/s",
                (
                    Query(
                        or_none(rate("memory_extproc_llm_requests_total", "role, outcome")), "{{role}}: {{outcome}}"
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "Tokens of language models",
                "As they counted them, each second: what learning costs.",
                "suffix: tokens/s",
                (
                    Query(
                        or_none(rate("memory_extproc_llm_tokens_total", "role, direction")),
                        "{{role}}: {{direction}}",
                    ),
                ),
                stacked=True,
            ),
        ),
    ),
    Row(
        "What conversations were about",
        (
            Panel(
                "Topics",
                "Opened by a conversation's first turn or a change of subject, and closed: written with a summary, or too small for one.",
                "suffix: topics/s",
                (Query(or_none(rate("memory_extproc_topics_total", "outcome")), "{{outcome}}"),),
            ),
            Panel(
                "Changes of subject",
                "Turns by who said whether they go on with their topic. The model is asked only where the measures are in doubt.",
                "suffix: turns/s",
                (
                    Query(
                        or_none(rate("memory_extproc_topic_checks_total", "stage, verdict")),
                        "{{stage}}: {{verdict}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "Summaries",
                "Of topics and of sessions, by who made them: a model, or sentences of the conversation while there is none or its tokens are spent.",
                "suffix: summaries/s",
                (Query(or_none(rate("memory_extproc_summaries_total", "of, by")), "{{of}}: {{by}}"),),
                stacked=True,
            ),
            Panel(
                "Profiles",
                "Requests that were told who their caller is (inject.profile), those that were not because nothing is known, fits or is new, and those whose caller's facts could not be read in time.",
                "suffix: requests/s",
                (Query(or_none(rate("memory_extproc_profiles_total", "outcome")), "{{outcome}}"),),
                stacked=True,
            ),
            Panel(
                "Long chats",
                "By whether a condensed state went in place of older messages, and why not.",
                "suffix: chats/s",
                (Query(or_none(rate("memory_extproc_compressions_total", "outcome")), "{{outcome}}"),),
                stacked=True,
            ),
            Panel(
                "Tokens spared by compression",
                "Share of the compressed chats' estimated tokens that the model did not get; prices are by the tokens that are left.",
                "percentunit",
                (Query(or_none(_SPARED)),),
            ),
        ),
    ),
    Row(
        "What becomes of it with time",
        (
            Panel(
                "Retention",
                "What was made of memories: deleted softly (expired, ttl, cap, sources), superseded by one that says the same (merged), made of others (derived), erased after the grace.",
                "suffix: memories/s",
                (Query(or_none(rate("memory_extproc_retired_total", "reason")), "{{reason}}"),),
                stacked=True,
            ),
            Panel(
                "Callers seen to",
                "By a round of retention, each second; failed ones are seen to by the next.",
                "suffix: callers/s",
                (Query(or_none(rate("memory_extproc_retention_owners_total", "outcome")), "{{outcome}}"),),
                stacked=True,
            ),
            Panel(
                "Last round",
                "How long ago a round over all callers ended; retention.every says how often one begins.",
                "s",
                (Query(f"time() - {gauge('memory_extproc_retention_last_round_timestamp_seconds', 'max')}"),),
            ),
        ),
    ),
)
