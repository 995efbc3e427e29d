"""Shared state of replicas: versions, epochs, leases, records, consent and the ledger of forgets.

SQLite serves a single replica, Redis several."""
