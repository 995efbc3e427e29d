"""Encryption at rest: texts are sealed before they reach store and journal, and unsealed when read."""
