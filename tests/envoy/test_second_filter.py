"""Two memory filters in one route, a listener's and a gateway's: the first decides, the second leaves it there."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from memory_extproc.envoyconfig.options import Bodies
from tests.envoy.test_two_filters import written
from tests.support.envoy import Envoy, Wiring
from tests.support.ports import free_port
from tests.support.upstream import ANSWER, an_answer
from tests.support.waiting import until
from tests.support.whole import WholeStand

pytestmark = pytest.mark.envoy

BUDGET = "My budget for the Hawaii trip is $10,000."
ASKED = "What's my budget for the trip?"


class DoubledEnvoy(Envoy):
    """The filter that `envoy-config` writes, twice in a row."""

    async def start(self, wiring: Wiring, *, sidecar: int, upstream: int) -> None:
        self.front, self.admin = free_port(), free_port()
        tree = written(sidecar, upstream, front=self.front, admin=self.admin, bodies=Bodies.BUFFERED, two=False)
        listener = tree["static_resources"]["listeners"][0]
        chain = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
        [place] = [at for at, each in enumerate(chain) if each["name"] == "memory"]
        chain.insert(place, {**copy.deepcopy(chain[place]), "name": "memory_of_the_listener"})
        await self.launch(json.dumps(tree))

        async def seen() -> bool:
            return await self.healthy("memory_extproc")

        await until(seen, "Envoy has seen the sidecar")


@pytest.fixture
async def doubled(envoy_binary: Path, int8_model_dir: Path, tmp_path: Path) -> AsyncIterator[WholeStand]:
    envoy = DoubledEnvoy(envoy_binary, tmp_path)
    try:
        async with WholeStand(envoy, tmp_path, int8_model_dir.parent) as made:
            yield made
    finally:
        sys.stderr.write(envoy.log[-4000:])


async def test_a_second_filter_honours_what_the_client_asked_of_the_first(doubled: WholeStand) -> None:
    doubled.upstream.answers = an_answer(json.dumps(ANSWER).encode())
    await doubled.start()
    assert (await doubled.say("My sister lives in Oslo.", x_memory_store="skip")).memory == "empty"
    assert (await doubled.say("My brother lives in Rome.", x_memory_incognito="true")).memory == "empty"
    assert (await doubled.say(BUDGET)).memory == "empty"
    await until(lambda: doubled.accepted == 1, "the one turn that may be learned is learned")

    answer = await doubled.say(ASKED)
    assert answer.memory == "used;n=1;path=hybrid"
    assert doubled.shown.count("<memory>") == 1
    assert (await doubled.say(ASKED, x_memory_retrieve="skip")).memory == "opted_out"
    assert "<memory>" not in doubled.shown
    await until(lambda: doubled.accepted == 2, "a question is learned as ever")
    for skipped in ("Where does my sister live?", "Where does my brother live?"):
        await doubled.say(skipped)
        assert "Oslo" not in doubled.shown
        assert "Rome" not in doubled.shown
