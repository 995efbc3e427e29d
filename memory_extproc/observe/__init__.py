"""Metrics, log events and spans."""
