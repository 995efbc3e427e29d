"""The read path after the wire, under one deadline: whether memory helps, what for, what is found, what text
becomes of it.

`recaller` goes the way: `gate` and `query` before the search, `fusion`, `close_reading` and `rerank` over
what was found, `rank` (with `view`, `once`, `mmr`, `threads`) for what is chosen, `block` for the text.
`weights` and `calibration` hold what `eval tune` fits; `profile`, `shared` and `canary` stand beside the way.
"""
