"""Two filters in Envoy: one changes the request, the other stands first, watches and is waited for by nobody."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from memory_extproc.envoyconfig.manifests import Shape, render
from memory_extproc.envoyconfig.options import Bodies, EnvoyOptions, IdentityMode, Upstream
from memory_extproc.settings import Settings
from memory_extproc.settings.traffic import EnvoySection
from tests.support.envoy import FULL_DUPLEX, Envoy, Stand, Wiring
from tests.support.ports import free_port
from tests.support.sidecar import BLOCK, Sidecar
from tests.support.upstream import ANSWER, a_stream, an_answer, sse_events
from tests.support.waiting import until
from tests.support.whole import WholeStand

pytestmark = pytest.mark.envoy

BUDGET = "My budget for the Hawaii trip is $10,000."
ASKED = "What's my budget for the trip?"
MIB = 1024 * 1024


def written(
    sidecar: int, upstream: int, *, front: int, admin: int, bodies: Bodies, two: bool = True
) -> dict[str, Any]:
    options = EnvoyOptions(
        sidecar=f"127.0.0.1:{sidecar}",
        upstream=Upstream("127.0.0.1", upstream, tls=False),
        listen=("127.0.0.1", front),
        admin_port=admin,
        identity=IdentityMode.TRUST,
        settings=Settings(
            envoy=EnvoySection(message_timeout=timedelta(seconds=12), health_interval=timedelta(milliseconds=100))
        ),
        bodies=bodies,
        two_filters=two,
    )
    tree: dict[str, Any] = yaml.safe_load(render(options, Shape.BOOTSTRAP))
    return tree


REDACTED = {
    "name": "redaction",
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
        "default_source_code": {
            "inline_string": (
                "function envoy_on_response(handle)\n"
                "  local body = handle:body()\n"
                "  local text = body:getBytes(0, body:length())\n"
                "  body:setBytes((string.gsub(text, 'secret%-%w+', '[gone]')))\n"
                "end\n"
            )
        },
    },
}


class TwoFilterEnvoy(Envoy):
    """Runs what `envoy-config --two-filters` writes. With another sidecar, that is the one that watches."""

    def __init__(self, binary: Path, scratch: Path) -> None:
        super().__init__(binary, scratch)
        self.between: list[dict[str, Any]] = []  # filters of the gateway's own, behind the one that watches

    async def start(self, wiring: Wiring, *, sidecar: int, upstream: int) -> None:
        self.front, self.admin = free_port(), free_port()
        bodies = Bodies.FULL_DUPLEX if wiring.request_body == FULL_DUPLEX else Bodies.BUFFERED
        tree = written(sidecar, upstream, front=self.front, admin=self.admin, bodies=bodies)
        resources = tree["static_resources"]
        chain = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
        assert chain[0]["name"] == "memory_observer"
        for port in wiring.others:
            ours = next(each for each in resources["clusters"] if each["name"] == "memory_extproc")
            other = json.loads(json.dumps(ours).replace(str(sidecar), str(port)))
            other["name"] = other["load_assignment"]["cluster_name"] = "other"
            resources["clusters"].append(other)
            chain[0]["typed_config"]["grpc_service"]["envoy_grpc"]["cluster_name"] = "other"
        chain[1:1] = self.between
        await self.launch(json.dumps(tree))

        async def seen() -> bool:
            return await self.healthy("memory_extproc")

        await until(seen, "Envoy has seen the sidecar")


@pytest.fixture
async def stand(envoy_binary: Path, tmp_path: Path) -> AsyncIterator[Stand]:
    """The wire alone, with what is learned written down."""
    envoy = TwoFilterEnvoy(envoy_binary, tmp_path)
    try:
        async with Stand(envoy) as made:
            made.sidecar.two_filters = True
            yield made
    finally:
        sys.stderr.write(envoy.log[-4000:])


@pytest.fixture
async def remembering(envoy_binary: Path, int8_model_dir: Path, tmp_path: Path) -> AsyncIterator[WholeStand]:
    envoy = TwoFilterEnvoy(envoy_binary, tmp_path)
    try:
        async with WholeStand(envoy, tmp_path, int8_model_dir.parent) as made:
            made.changes["envoy"] = {"two_filters": True}
            yield made
    finally:
        sys.stderr.write(envoy.log[-4000:])


async def learned(sidecar: Sidecar, count: int = 1) -> None:
    await until(lambda: len(sidecar.learns.exchanged) >= count, f"{count} turns are learned")


@pytest.mark.parametrize("duplex", [False, True])
async def test_the_whole_sidecar_remembers_through_two_filters(remembering: WholeStand, *, duplex: bool) -> None:
    whole = remembering
    whole.duplex = duplex
    whole.upstream.answers = an_answer(json.dumps(ANSWER).encode())

    await whole.start()
    assert (await whole.say(BUDGET)).memory == "empty"
    await until(lambda: whole.accepted == 1, "the turn is learned")
    answer = await whole.say(ASKED)
    assert answer.memory == "used;n=1;path=hybrid"
    assert answer.headers["cache-control"] == "private, no-store"
    assert "$10,000" in whole.shown
    assert (await whole.say(ASKED, user="bob")).memory == "empty"
    await until(lambda: whole.accepted == 3, "all turns are learned")
    outcomes = {
        word: whole.sample("exchanges_total", dialect="chat_completions", outcome=word)
        for word in ("used", "empty")
    }
    assert outcomes == {"used": 1, "empty": 2}, "an exchange is counted once, however many filters see it"
    assert not any(
        whole.sample("stream_faults_total", kind=kind) for kind in ("bug", "out_of_order", "unsupported_mode")
    )


async def test_what_is_learned_is_what_the_client_said_and_what_it_got(stand: Stand) -> None:
    message = {"role": "assistant", "content": "Use secret-code42."}
    told = {**ANSWER, "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
    stand.upstream.answers = an_answer(json.dumps(told).encode())
    assert isinstance(stand.envoy, TwoFilterEnvoy)
    stand.envoy.between = [REDACTED]
    await stand.start()
    answer = await stand.chat()
    assert b"[gone]" in answer.body
    messages = json.loads(stand.upstream.got[-1].body)["messages"]
    assert any(BLOCK in str(message["content"]) for message in messages)
    await learned(stand.sidecar)
    (turn,) = stand.sidecar.learns.exchanged
    assert turn.asked == "What is my budget for Hawaii?"
    assert turn.answered == "Use [gone]."
    assert (turn.caller.owner.user, turn.origin.dialect) == ("ann", "chat_completions")


async def test_a_streamed_answer_is_learned_and_no_piece_of_it_goes_through_the_filter_that_changes(
    stand: Stand,
) -> None:
    stand.upstream.answers = a_stream(sse_events("Ten ", "thousand."))
    await stand.start()
    assert (await stand.chat()).memory.startswith("used")
    await learned(stand.sidecar)
    assert stand.sidecar.learns.exchanged[0].answered == "Ten thousand."
    # Headers and body of the request, headers of the answer: nothing for the pieces.
    stats = await stand.envoy._ask("/stats?filter=ext_proc.memory.stream_msgs_received")
    assert stats.strip().endswith(": 3")


async def test_what_may_not_be_kept_is_not_kept_and_a_session_ends_as_asked(stand: Stand) -> None:
    await stand.start()
    await stand.chat(x_memory_store="skip", x_memory_session="end")
    await until(lambda: bool(stand.sidecar.learns.ended), "the session ends")
    await stand.chat(user="")
    await stand.chat(x_memory_incognito="true")
    await stand.chat()
    await learned(stand.sidecar)
    assert len(stand.sidecar.learns.exchanged) == 1


async def test_many_at_once_are_each_learned_once_as_their_own_callers(stand: Stand) -> None:
    await stand.start()
    users = [f"user-{number}" for number in range(40)]
    answers = await asyncio.gather(*(stand.chat(user=user) for user in users))
    assert all(answer.status == 200 for answer in answers)
    await learned(stand.sidecar, len(users))
    assert sorted(turn.caller.owner.user for turn in stand.sidecar.learns.exchanged) == sorted(users)


async def test_the_two_may_reach_different_replicas(stand: Stand) -> None:
    stand.second = Sidecar()
    stand.second.two_filters = True
    await stand.start()
    assert (await stand.chat()).memory.startswith("used")
    await learned(stand.second)
    assert not stand.sidecar.learns.exchanged
    assert stand.second.learns.exchanged[0].caller.owner.user == "ann"
