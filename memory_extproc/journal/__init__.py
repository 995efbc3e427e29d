"""The journal of accepted turns: in a SQLite file, in Redis, or in Redis with a file to fail over to."""
