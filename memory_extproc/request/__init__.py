"""One chat request: who sends it, what it may have, and what it is given.

Read in the order in which a request passes: `admission` with `identity` and `jwt`; `body`; `policy`; `enricher`,
which plans what to insert and inserts it; `replay` for blocks of earlier turns, `compression` with `condenser` for
long conversations.
"""
