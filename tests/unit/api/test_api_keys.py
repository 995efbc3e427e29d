"""API keys: what a key file may say, and that it is read again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from memory_extproc.api.authentication import MAX_KEYS, ApiKeys, key_hash, parse_keys
from memory_extproc.errors import ConfigurationError
from memory_extproc.settings.api import PrincipalRole

KEY, OTHER = "mxk_one", "mxk_other"


def entry(key: str) -> str:
    return f"  - {{id: {key}, sha256: {key_hash(key)}, user: ann}}\n"


class Knocks:
    """Says when the file may have changed."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[None] = asyncio.Queue()

    async def knock(self) -> None:
        """Returns once the change was looked at."""
        self._queue.put_nowait(None)
        await self._queue.join()

    async def __call__(self, _: Path) -> AsyncGenerator[object]:
        while True:
            await self._queue.get()
            yield None
            self._queue.task_done()


async def test_a_key_that_is_added_counts_and_one_that_is_taken_out_does_not(tmp_path: Path) -> None:
    path, knocks = tmp_path / "keys.yaml", Knocks()
    path.write_text("keys:\n" + entry(KEY))
    async with ApiKeys(path, knocks) as keys:
        holder = keys.holder(KEY)
        assert holder is not None
        assert (holder.user, holder.tenant, holder.roles) == ("ann", "", frozenset({PrincipalRole.USER}))
        assert keys.holder(OTHER) is None
        path.write_text("keys:\n" + entry(OTHER))
        await knocks.knock()
        assert keys.holder(OTHER) is not None
        assert keys.holder(KEY) is None


async def test_a_file_that_became_unreadable_leaves_the_keys_as_they_were(tmp_path: Path) -> None:
    path, knocks = tmp_path / "keys.yaml", Knocks()
    path.write_text("keys:\n" + entry(KEY))
    async with ApiKeys(path, knocks) as keys:
        for content in ("keys: [", "keys:\n  - {id: x}\n", None):
            path.unlink() if content is None else path.write_text(content)
            await knocks.knock()
            assert keys.holder(KEY) is not None
        path.write_text("keys: []\n")
        await knocks.knock()
        assert keys.holder(KEY) is None


async def test_the_file_itself_is_watched_though_another_takes_its_place(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("keys:\n" + entry(KEY))
    async with ApiKeys(path) as keys:
        made = tmp_path / "made.yaml"
        made.write_text("keys:\n" + entry(OTHER))
        made.replace(path)
        async with asyncio.timeout(20):
            while keys.holder(OTHER) is None:
                await asyncio.sleep(0.05)
                made.write_text("keys:\n" + entry(OTHER))
                made.replace(path)


async def test_a_file_with_faults_keeps_the_sidecar_from_starting(tmp_path: Path) -> None:
    for content in ("keys:\n  - {id: x, sha256: short, user: ann}\n", None):
        path = tmp_path / "keys.yaml"
        path.unlink(missing_ok=True)
        if content:
            path.write_text(content)
        with pytest.raises(ConfigurationError):
            async with ApiKeys(path):
                pass


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("keys: [", ["no YAML"]),
        ("[]", ["Expected `object`"]),
        ("keys:\n  - {id: a, sha256: x, user: u, extra: 1}\n", ["unknown field"]),
        ("keys:\n  - {id: a, sha256: x, user: u, roles: [root]}\n", ["Invalid enum value"]),
        ("keys:\n  - {id: '', sha256: " + "g" * 64 + ', user: "a\\nb", tenant: "\\t"}\n',
         ["[0].id", "[0].sha256", "[0].tenant", "[0].user"]),
        ("keys:\n  - {id: a, sha256: " + "ab" * 32 + "}\n", ["only admins and auditors"]),
        ("keys:\n  - {id: a, sha256: " + "ab" * 32 + ", user: u, roles: []}\n", ["[0].roles"]),
        ("keys:\n" + ("  - {id: a, sha256: " + "ab" * 32 + ", user: u}\n") * 2, ["is there twice"]),
    ],
)  # fmt: skip
def test_every_fault_of_a_key_file_is_told_with_its_place(text: str, faults: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_keys(text)
    assert len(caught.value.faults) == len(faults)
    for told, expected in zip(caught.value.faults, faults, strict=True):
        assert expected in told


def test_a_key_file_has_a_bound() -> None:
    with pytest.raises(ConfigurationError, match="are more than"):
        parse_keys("keys: [" + "{id: a, sha256: b, user: u}," * (MAX_KEYS + 1) + "]")
