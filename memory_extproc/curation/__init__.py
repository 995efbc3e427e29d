"""Memories that people write and look through themselves, over the memory API: what it does, without gRPC."""
