"""Shared state of replicas: versions, epochs, leases, records, consent and the ledger of forgets.

SQLite serves a single replica, Redis several."""

from importlib.resources import files


def read_lua(name: str) -> str:
    """An atomic operation of Redis, out of `lua/`."""
    return files(__package__).joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
