"""What becomes of memories with time.

Rules say it, purely (`rules`, `merge`); `passes` applies them to one owner, `scheduler` to everybody. `reflection`
asks models, `usage` counts what models were given, `reembed` finds vectors of another model.
"""
