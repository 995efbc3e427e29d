"""Memories in Milvus: a server, or a Milvus Lite file in this process.

`store` is the adapter; `connect` opens it, `calls` guards each call, `schema` and `rows` have the fields; `lite*`
serve the embedded file alone."""
