"""Memories in Milvus: a server, or a Milvus Lite file in this process.

`store` is the adapter over a `session`; `connect`, `schema`, `rows` and `options` say how; `lite*` serve the
embedded one alone."""
