"""Encryption at rest: `codecs` encrypt texts before they reach store and journal; `keys` has their keys."""
