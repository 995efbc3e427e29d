"""One secret of the memory API, and the keys that are made of it: each purpose has its own."""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from memory_extproc.errors import ConfigurationError

SECRET_BYTES = 16  # at least
_FILE = "api.key"


def derived(secret: bytes, purpose: str) -> bytes:
    """32 bytes that tell nothing of *secret* or of the keys for other purposes."""
    return hmac.digest(secret, b"memory-extproc\0" + purpose.encode(), "sha256")


def secret_in(directory: Path) -> bytes:
    """The secret of this data directory, made when it is first asked for; only its owner can read it."""
    path = directory / _FILE
    if not path.exists():
        try:
            _make(path)
        except OSError as error:
            raise ConfigurationError([f"data_dir: {path} cannot be written: {error.strerror}"]) from error
    return read_secret(directory)


def read_secret(directory: Path) -> bytes:
    """As secret_in, where it must be there already."""
    path = directory / _FILE
    try:
        secret = path.read_bytes()
    except OSError as error:
        raise ConfigurationError([f"data_dir: {path} cannot be read: {error.strerror}"]) from error
    if len(secret) < SECRET_BYTES:
        raise ConfigurationError(
            [f"data_dir: {path} is damaged: it holds no secret of {SECRET_BYTES} bytes or more"]
        )
    return secret


def _make(path: Path) -> None:
    """The file is there whole or not at all, whenever we are interrupted."""
    made = path.with_suffix(".new")
    made.unlink(missing_ok=True)
    with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(32))
        file.flush()
        os.fsync(file.fileno())
    made.replace(path)
