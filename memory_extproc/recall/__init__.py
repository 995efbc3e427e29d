"""The read path under one deadline: whether memory helps, what is searched and found, what text it becomes.

`recaller` goes the way: `query` before the search, `fusion`, `late_interaction` and `rerank` over what was found,
`rank` with `dedup` and `topic_context` for what is chosen, `prompt_block` for the text. `weights` holds what
`eval tune` fits; `canary` asks on a schedule.
"""
