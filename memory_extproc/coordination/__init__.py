"""What replicas agree on: versions, epochs, leases, records, consent, the ledger of forgets. SQLite for one,
Redis for several."""
