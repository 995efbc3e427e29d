"""The journal of accepted turns: in SQLite, in Redis, or in Redis with a local file for failover."""
