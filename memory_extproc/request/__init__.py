"""The request path: authentication, policy, recall and injection for one chat request.

Read in the order in which a request passes: `admission` with `identity` and `jwt`; `body`; `policy`; `enricher`,
which plans and inserts the blocks; `replay` for blocks of earlier turns, `compression` for long
conversations."""
