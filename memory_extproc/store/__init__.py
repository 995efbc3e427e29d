"""Where memories rest, and what this process holds of them.

- Milvus: `milvus` over `opened`, with `opening`, `schema`, `rows` and `placement`; `archive` for collections as a
  whole; `lite*`, `flusher`, `gate` and `rewriting` for the embedded one.
- In front of any store: `partition`, the memories of active owners, with `roster`, `owned`, `held` and
  `filling`.
- `transient` is the fake; `rules` is what every store refuses.
"""
