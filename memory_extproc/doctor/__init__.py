"""Diagnostics for a live gateway, run from a client's position."""
