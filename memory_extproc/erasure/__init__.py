"""Forgetting: what goes, in which order, what keeps it gone, and the proof of it."""
