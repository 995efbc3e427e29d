"""The memory API. `service` is the one entry; `authentication` and `authorization` decide who may call.

`memories`, `forget`, `transfer` and `settings` do what is asked; `validation` checks requests, `audit`
records calls.
"""
