"""What becomes of memories with time.

Rules say it, purely (`rules`, `duplicates`, `histories`, `derived`, `themes`); `keeper` applies them to one
owner, `job` to everybody. Models come in by `subjects` and `reflections`. `accesses` and `noticing` tell what
happened to memories, `reembedding` finds vectors of another model.
"""
