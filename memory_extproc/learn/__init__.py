"""The write path: from a completed exchange to memories, at least once and in effect exactly once.

Read in the order in which a turn passes: `ingest` and `screening`; `learner` over the `queue`; `messages` and
their chunks; `extract/` for facts, then `reconcile` by `conflicts`; `commands/` for requests to remember or to
forget."""
