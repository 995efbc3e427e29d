"""The memories that this process holds, and where they are stored.

`partition` holds the memories of active owners: `overlay` over `resident` rows, filled by `loader`. `milvus/` is
the store; `archive` writes a store to a file."""
