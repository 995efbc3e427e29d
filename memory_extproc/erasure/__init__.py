"""Forgetting: the cascade, its steps, tombstones that keep data deleted, and signed receipts."""
