"""The read path under one deadline: gate, search, ranking, selection, and the text of the block.

Begin with `recaller`, which runs the steps: `query` before the search; `fusion`, `late_interaction` and `rerank`
score the candidates; `rank`, `dedup` and `topic_context` select; `prompt_block` writes the text. `eval tune` fits
`weights`; `canary` tests recall on a schedule.
"""
