"""The write path: from a completed exchange to memories, at least once and in effect exactly once.

Read in the order in which a turn passes: `ingest` and `screening`; `learner` over the `queue`; `messages` with
`chunking` for what was said; `extract/` for facts, then `reconcile` by `conflicts`; `commands/` for what users tell
the assistant to do."""
