"""Memories that users write and browse through the memory API, independent of gRPC."""
