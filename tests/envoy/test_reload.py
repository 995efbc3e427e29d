"""The configuration changes while requests come, through the real Envoy."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import yaml
from google.protobuf.json_format import MessageToDict

from memory_extproc.api.gen import memory_pb2
from memory_extproc.cli.api_client import open_stub
from tests.support.upstream import ANSWER, an_answer
from tests.support.waiting import until
from tests.support.whole import WholeStand

pytestmark = pytest.mark.envoy

BUDGET = "My budget for the Hawaii trip is $10,000."
ASKED = "What's my budget for the trip?"


def told(whole: WholeStand, outcome: str) -> float:
    return whole.sample("configuration_reloads_total", outcome=outcome)


async def ask_until(whole: WholeStand, outcome: str, count: float = 1.0) -> None:
    """As SIGHUP does; the file is watched as well, and either way comes to the same."""
    assert whole.whole.reloading is not None
    whole.whole.reloading.ask()
    await until(lambda: told(whole, outcome) >= count, f"the configuration is {outcome}")


async def test_a_raised_threshold_ends_injection_without_a_restart_and_a_lowered_one_brings_it_back(
    whole: WholeStand,
) -> None:
    await whole.start()
    whole.upstream.answers = an_answer(json.dumps(ANSWER).encode())
    await whole.say(BUDGET)
    assert (await whole.say(ASKED)).memory.startswith("used")
    whole.changes["memory"] = {"default_similarity_threshold": 1.0}
    whole.settings()
    await ask_until(whole, "applied")
    assert (await whole.say(ASKED)).memory == "nothing_relevant"
    assert whole.shown == ASKED
    whole.changes["memory"]["default_similarity_threshold"] = 0.6
    whole.settings()
    await ask_until(whole, "applied", 2)
    assert (await whole.say(ASKED)).memory.startswith("used")


async def test_a_rule_comes_by_the_file_alone_and_a_bad_file_takes_nothing_away(whole: WholeStand) -> None:
    await whole.start()
    whole.changes["rules"] = [{"when": {"path": "*"}, "then": {"retrieve": "skip"}}]
    whole.settings()
    # Watching may begin after the file was written: then the next change is seen.
    async with asyncio.timeout(20):
        while not told(whole, "applied"):
            whole.config.write_text(whole.config.read_text() + "\n")
            await asyncio.sleep(0.1)
    assert (await whole.say(ASKED)).memory == "disabled"
    whole.config.write_text("rules: [{when: {path: '*'}, then: {store: never}}]\n")
    await ask_until(whole, "refused")
    assert whole.sample("configuration_reload_failed") == 1
    assert (await whole.say(ASKED)).memory == "disabled"
    whole.changes["rules"] = []
    whole.settings()
    await ask_until(whole, "applied", 2)
    assert whole.sample("configuration_reload_failed") == 0
    assert (await whole.say(ASKED)).memory != "disabled"


async def test_requests_under_way_while_it_changes_are_all_answered(whole: WholeStand) -> None:
    await whole.start()
    await whole.say(BUDGET)

    async def chats() -> set[str]:
        return {(await whole.say(ASKED)).memory.partition(";")[0] for _ in range(20)}

    chatting = [asyncio.create_task(chats()) for _ in range(4)]
    for number in range(6):
        given = yaml.safe_load(whole.config.read_text())
        given["mode"] = "active" if number % 2 else "shadow"
        whole.config.write_text(yaml.safe_dump(given))
        await ask_until(whole, "applied", number + 1)
    seen = set().union(*await asyncio.gather(*chatting))
    assert seen <= {"used", "shadowed"}
    assert whole.sample("stream_faults_total", kind="bug") == 0


async def change(whole: WholeStand, count: float, **changes: Any) -> None:
    whole.changes.update(changes)
    whole.settings()
    await ask_until(whole, "applied", count)
    assert whole.sample("configuration_restart_needed") == 0


async def test_who_a_caller_is_and_who_has_memory_follow_the_configuration(whole: WholeStand) -> None:
    await whole.start()
    await whole.say(BUDGET)
    await change(whole, 1, identity={"user_header": "x-person"})
    assert (await whole.say(ASKED)).memory == "no_caller", "the old header says nothing any more"
    assert (await whole.say(ASKED, x_person="ann")).memory.startswith("used")
    await change(whole, 2, identity={"user_header": "x-authz-user-id", "people_only": "*@example.com"})
    assert (await whole.say(ASKED)).memory == "no_caller"
    await change(whole, 3, identity={"people_only": ""}, privacy={"consent": "opt_in"})
    assert (await whole.say(ASKED)).memory == "no_consent"
    await change(whole, 4, privacy={"consent": "opt_out"}, identity={"strip_headers": True})
    assert (await whole.say(ASKED)).memory.startswith("used")
    assert "x-authz-user-id" not in whole.upstream.got[-1].headers
    await change(whole, 5, telemetry={"tenants": ["acme"]})
    await whole.say(ASKED, x_authz_tenant_id="acme")
    assert whole.sample("arm_exchanges_total", tenant="acme", arm="memory") == 1


async def test_what_is_learned_and_how_much_follows_the_configuration(whole: WholeStand) -> None:
    whole.changes["learn"] = {"quota": {"turns_per_hour": 1, "burst": 1}}
    await whole.start()
    whole.upstream.answers = an_answer(json.dumps(ANSWER).replace("It is $10,000.", "Fine.").encode())
    await whole.say(BUDGET)
    await whole.say("My car is a blue Volvo.")
    assert whole.sample("turns_total", outcome="over_quota") == 1
    await change(whole, 1, learn={"quota": {"turns_per_hour": 0}}, privacy={"identifiers": "drop"})
    await whole.say("My mail address is ann@example.com.")
    assert whole.sample("turns_total", outcome="over_quota") == 1
    assert whole.sample("withheld_total", kind="mail address") == 1
    await change(whole, 2, chat_commands="off")
    await whole.say("Forget what I told you about my budget.")
    await whole.say(ASKED)
    assert "$10,000" in whole.shown
    await change(whole, 3, chat_commands="remember_and_forget")
    await whole.say("Please forget what I told you about my budget.")
    await whole.say(ASKED)
    assert "$10,000" not in whole.shown


async def test_the_deadline_and_the_bytes_of_partitions_in_effect_count(whole: WholeStand) -> None:
    await whole.start()
    await change(whole, 1, recall={"deadline": "9s", "partition_bytes": "1MiB"})
    assert whole.sample("recall_deadline_seconds") == 9
    assert whole.whole.partitions._limits.bytes == 1 << 20


async def test_a_shorter_interval_of_retention_rounds_needs_no_restart(whole: WholeStand) -> None:
    await whole.start()
    assert not whole.sample("retention_rounds_total"), "the first of a day's rounds is minutes away"
    await change(whole, 1, retention={"every": "1s"})
    await until(lambda: whole.sample("retention_rounds_total") > 0, "the round is over")


async def test_a_smaller_bound_for_bodies_counts_from_the_next_request_on(whole: WholeStand) -> None:
    await whole.start()
    await whole.say(BUDGET)
    long = f"{ASKED} {'x ' * 2000}"
    await whole.say(long)
    await change(whole, 1, limits={"request_body": "2KiB"})
    assert not whole.sample("exchanges_total", dialect="chat_completions", outcome="too_large")
    await whole.say(long)
    assert whole.sample("exchanges_total", dialect="chat_completions", outcome="too_large") == 1
    assert (await whole.say(ASKED)).memory.startswith("used")


async def test_a_configmap_whose_links_are_swapped_is_followed_without_being_asked(
    whole: WholeStand, tmp_path: Path
) -> None:
    whole.settings()
    good = yaml.safe_load(whole.config.read_text())
    mounted = tmp_path / "mounted"
    number = 0

    def swap(**changes: Any) -> None:
        """As the kubelet does it: a new directory, and one rename that brings all of its files at once."""
        nonlocal number
        number += 1
        (mounted / f"..{number}").mkdir(parents=True)
        (mounted / f"..{number}" / "config.yaml").write_text(yaml.safe_dump({**good, **changes}))
        (mounted / "..new").symlink_to(f"..{number}")
        (mounted / "..new").rename(mounted / "..data")

    swap()
    (mounted / "config.yaml").symlink_to("..data/config.yaml")
    whole.mounted = mounted / "config.yaml"
    await whole.start()
    await whole.say(BUDGET)
    for mode, outcome in (("shadow", "applied"), ("never", "refused")):
        # Watching may begin after the first swap: then the next is seen.
        async with asyncio.timeout(20):
            while not told(whole, outcome):
                swap(mode=mode)
                await asyncio.sleep(0.3)
        assert (await whole.say(ASKED)).memory == "shadowed", "the bad one takes nothing away"


async def test_admins_see_what_the_running_process_is_configured_with_and_nobody_else_does(
    whole: WholeStand,
) -> None:
    whole.changes["api"] = {"trusted_proxy": {"roles_header": "x-roles"}, "secret": "a secret of sixteen bytes"}
    await whole.start()
    whole.changes["memory"] = {"default_similarity_threshold": 0.75, "milvus": {"shards": 2, "timeout": "3s"}}
    whole.settings()
    await ask_until(whole, "applied")
    async with grpc.aio.insecure_channel(whole.whole.api) as channel:
        stub = open_stub(channel)

        async def asked(*who: tuple[str, str]) -> memory_pb2.GetConfigurationResponse:
            answer: memory_pb2.GetConfigurationResponse = await stub.GetConfiguration(
                memory_pb2.GetConfigurationRequest(), metadata=who
            )
            return answer

        answer = await asked(("x-authz-user-id", "root"), ("x-roles", "admin"))
        memory = MessageToDict(answer.configuration)["memory"]
        assert memory["default_similarity_threshold"] == 0.75
        assert list(answer.needs_restart) == ["memory.milvus.timeout"]
        assert memory["milvus"]["timeout"] == "2s", "what runs, not what the file says"
        assert "sixteen" not in str(answer)
        for who in (
            (("x-authz-user-id", "ann"),),
            (("x-authz-user-id", "carol"), ("x-roles", "auditor")),
            (("x-authz-user-id", "dave"), ("x-roles", "admin"), ("x-authz-tenant-id", "acme")),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await asked(*who)
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_who_is_an_admin_of_the_memory_api_follows_the_configuration(whole: WholeStand) -> None:
    whole.changes["api"] = {"trusted_proxy": {"roles_header": "x-roles"}, "secret": "a secret of sixteen bytes"}
    await whole.start()
    async with grpc.aio.insecure_channel(whole.whole.api) as channel:
        stub = open_stub(channel)

        async def code(header: str) -> grpc.StatusCode:
            call = stub.GetConfiguration(
                memory_pb2.GetConfigurationRequest(), metadata=(("x-authz-user-id", "root"), (header, "admin"))
            )
            got: grpc.StatusCode = await call.code()
            return got

        taken, refused = grpc.StatusCode.OK, grpc.StatusCode.PERMISSION_DENIED
        assert [await code("x-roles"), await code("x-groups")] == [taken, refused]
        whole.changes["api"]["trusted_proxy"] = {"roles_header": "x-groups"}
        await change(whole, 1)
        assert [await code("x-roles"), await code("x-groups")] == [refused, taken]
