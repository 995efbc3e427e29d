"""After a forget is complete its words are in no byte that the sidecar keeps, also after a restart and a resend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.rest import RestStand
from tests.support.waiting import until

CANARY = "Quillfeather"
SAID = f"My sister {CANARY} lives in Hawaii and she is 34 years old."


def holding(directory: Path) -> list[str]:
    files = [file for file in directory.rglob("*") if file.is_file()]
    return [str(file.relative_to(directory)) for file in files if CANARY.encode() in file.read_bytes()]


async def ask(rest: RestStand, messages: list[dict[str, str]]) -> str:
    """The body that the model got."""
    body: dict[str, Any] = {"model": "demo", "messages": messages}
    await rest.chat(body, user="ann")
    return rest.upstream.got[-1].body.decode()


async def test_a_forgotten_person_is_in_no_file_and_does_not_come_back_with_the_history(
    rest: RestStand, tmp_path: Path
) -> None:
    await rest.start()
    data = tmp_path / "data"
    said = {"role": "user", "content": SAID}
    await ask(rest, [said])
    await until(lambda: rest.sample("journal_depth") >= 1 or holding(data), "it is learned")
    question = {"role": "user", "content": "Where does my sister live?"}
    answered = {"role": "assistant", "content": "Noted."}
    recalled = await ask(rest, [question])
    assert CANARY in recalled, "recall finds it, and the conversation is given it"
    assert holding(data)
    receipt = (await rest.rest("DELETE", "/v1/memory")).json["receipt"]["id"]
    assert CANARY not in await ask(rest, [question])
    goes_on = [question, answered, {"role": "user", "content": "And how old is she, my sister?"}]
    assert CANARY not in await ask(rest, goes_on), "a block of before went back"

    async def complete() -> bool:
        return bool((await rest.rest("GET", f"/v1/memory/receipts/{receipt}")).json["state"] == "complete")

    await until(complete, "the receipt is complete", seconds=30)
    assert holding(data) == []
    # The client still has the old turn, and sends it again with something new.
    old = [said, answered, {"role": "user", "content": "I prefer window seats on flights."}]
    await ask(rest, old)

    async def kept() -> bool:
        memories = (await rest.rest("GET", "/v1/memory")).json["memories"]
        return any("window seats" in one["content"] for one in memories)

    await until(kept, "what was said since is kept")
    await rest.restart()
    assert holding(data) == []
    assert CANARY not in await ask(rest, [question])
