"""How memories age: scoring, expiry, pruning, deduplication and erasure.

`rules` holds the pure decisions; `passes` applies them to one owner, `scheduler` to every owner.
`reflection` draws conclusions with a language model, `usage` counts accesses, `reembed` replaces vectors of another
model."""
