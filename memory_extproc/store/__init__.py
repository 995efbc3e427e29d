"""The memories that this process holds, and where they are stored.

`partition` holds the memories of active owners: `overlay` over `resident` rows, filled by `loader`. `milvus/` is
the store; `rules` is what every store refuses; `archive` writes a store to a file."""
