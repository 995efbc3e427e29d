"""Static API keys: hashed in a YAML file, read again when it changes.

keys:
  - {id: ops, sha256: 64 hex digits, tenant: acme, user: "", roles: [admin]}
"""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Self

import msgspec
import yaml

from memory_extproc.api.authenticate import KEY_PREFIX, KeyHolder, key_hash
from memory_extproc.api.principal import Role
from memory_extproc.errors import ConfigurationError
from memory_extproc.observe.log import logger
from memory_extproc.wire.identity import accepted, optional

log = logger(__name__)

MAX_KEYS = 1_000
_HASH_DIGITS = 64
Changes = Callable[[Path], AsyncGenerator[object]]  # something each time the file may have changed


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One key as the file has it."""

    id: str
    sha256: str
    tenant: str = ""
    user: str = ""  # empty: of no single user; such a caller names one in each request
    roles: tuple[Role, ...] = (Role.USER,)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: tuple[Entry, ...]


async def changes_of(path: Path) -> AsyncGenerator[object]:
    """Watches the directory: a file is often replaced by another of its name, in Kubernetes by way of a link."""
    from watchfiles import awatch  # noqa: PLC0415 - only where keys are configured

    async for _ in awatch(path.parent, recursive=False):
        yield None


class ApiKeys:
    """Implements authenticate.KnowsKeys. Entering it reads the file and watches it; a file that cannot be read or
    has a fault leaves the keys as they were."""

    def __init__(self, path: Path, changes: Changes = changes_of) -> None:
        self._path = path
        self._changes = changes
        self._holders: tuple[tuple[str, KeyHolder], ...] = ()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """ConfigurationError with every fault of the file."""
        self._holders = await self._read()
        self._task = asyncio.create_task(self._follow(), name="api keys")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def holder(self, key: str) -> KeyHolder | None:
        """Looks at every key, so that the time it takes tells nothing."""
        if not key.startswith(KEY_PREFIX):
            return None
        shown, found = key_hash(key).encode(), None
        for known, holder in self._holders:
            if hmac.compare_digest(known.encode(), shown):
                found = holder
        return found

    async def _follow(self) -> None:
        async with aclosing(self._changes(self._path)) as changes:
            async for _ in changes:
                try:
                    self._holders = await self._read()
                except ConfigurationError as error:
                    log.warning("api.keys_unusable", faults=len(error.faults), held=len(self._holders))
                else:
                    log.info("api.keys_read", held=len(self._holders))

    async def _read(self) -> tuple[tuple[str, KeyHolder], ...]:
        try:
            text = await asyncio.to_thread(self._path.read_text, encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                [f"api.keys_file: {self._path} cannot be read: {type(error).__name__}"]
            ) from error
        entries = parse_keys(text)
        return tuple(
            (entry.sha256.lower(), KeyHolder(entry.id, entry.tenant, entry.user, frozenset(entry.roles)))
            for entry in entries
        )


def parse_keys(text: str) -> Sequence[Entry]:
    """The entries of a key file; ConfigurationError with every fault."""
    try:
        entries = msgspec.convert(yaml.safe_load(text), _File).keys
    except (yaml.YAMLError, msgspec.ValidationError, RecursionError) as error:
        detail = str(error) if isinstance(error, msgspec.ValidationError) else "no YAML"
        raise ConfigurationError([f"api.keys_file: {detail}"]) from None
    if len(entries) > MAX_KEYS:
        raise ConfigurationError([f"api.keys_file: {len(entries)} keys are more than {MAX_KEYS}"])
    faults = [f"keys[{at}].{fault}" for at, entry in enumerate(entries) for fault in _faults(entry)]
    ids = Counter(entry.id for entry in entries)
    faults += [f"keys: the id {one!r} is there twice" for one, times in sorted(ids.items()) if times > 1]
    if faults:
        raise ConfigurationError([f"api.keys_file: {fault}" for fault in faults])
    return entries


def _faults(entry: Entry) -> list[str]:
    faults = []
    if not accepted(entry.id):
        faults.append("id: expected a printable name of 1 to 256 bytes")
    digits = entry.sha256.lower()
    if len(digits) != _HASH_DIGITS or digits.strip("0123456789abcdef"):
        faults.append("sha256: expected 64 hex digits, the hash of the key")
    faults += [
        f"{name}: expected a printable name of at most 256 bytes"
        for name in ("tenant", "user")
        if optional(getattr(entry, name)) is None
    ]
    if not entry.user and entry.roles == (Role.USER,):
        faults.append("user: is missing; only admins and auditors act for others")
    if not entry.roles:
        faults.append("roles: expected user, admin or auditor")
    return faults
