"""The read path under one deadline: gate, search, ranking, selection, and the text of the block.

Begin with `recaller`, which runs the steps: `query` reads the question; `fusion`, `late_interaction` and `rerank`
score the candidates; `rank`, a list of stages, and `dedup` select; `prompt_block` writes the text. `eval tune` fits
the weights; `canary` tests recall on a schedule.
"""
