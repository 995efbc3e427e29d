"""The measure by which serving pods are scaled, of a real sidecar by a real Prometheus."""

from __future__ import annotations

import asyncio
import re

import yaml

from tests.support.chart import ROOT, documents, one, rendered
from tests.support.envoy import Wiring
from tests.support.faults import FaultStand
from tests.support.faults_process import a_child
from tests.support.load import fact
from tests.support.prometheus import scraping
from tests.support.waiting import until

SELECTOR = re.compile(r"\{[^}]*\}")


def queries() -> tuple[str, str, float]:
    """KEDA's query, the adapter's, and KEDA's threshold. Only one pod is asked, so both choose all."""
    scaled = (
        "autoscaling.enabled=true",
        "autoscaling.cpu=0",
        "autoscaling.recallSaturation=70",
        "autoscaling.keda.enabled=true",
        "autoscaling.keda.prometheus=http://p:9090",
        "config.memory.milvus.address=milvus:19530",
        "config.coordination.url=redis://redis:6379/0",
        "learner.enabled=true",
    )
    scaler = one(documents(rendered(settings=scaled)), "ScaledObject", "test-memory-extproc")
    [trigger] = scaler["spec"]["triggers"]
    adapter = yaml.safe_load(
        (ROOT / "deploy" / "examples" / "servers" / "prometheus-adapter-values.yaml").read_text()
    )
    [rule] = [each for each in adapter["rules"]["custom"] if "recall_limit" in each["seriesQuery"]]
    asked = rule["metricsQuery"].replace("<<.GroupBy>>", "instance").replace("<<.LabelMatchers>>", "")
    return SELECTOR.sub("", trigger["metadata"]["query"]), asked, float(trigger["metadata"]["threshold"])


async def test_the_saturation_by_which_pods_are_scaled_rises_beyond_the_capacity_and_falls_after_it(
    faulty: FaultStand,
) -> None:
    keda, adapter, threshold = queries()
    shorter = [query.replace("[1m]", "[5s]") for query in (keda, adapter)]
    async with a_child(faulty, learn={"extractor": "off"}, recall={"max_concurrent": 12}) as child:
        await child.serving()
        await faulty.start_around(
            child.ext_proc, wiring=Wiring(failure_mode_allow=True, attributes=("request.time",))
        )
        async with scraping(faulty.scratch, {"sidecar": (f"127.0.0.1:{child.http}", "/metrics")}) as prometheus:

            async def saturated() -> bool:
                found = [await prometheus.value(query) for query in shorter]
                return all(series and float(series[0]["value"][1]) > threshold for series in found)

            async def idle() -> bool:
                found = [await prometheus.value(query) for query in shorter]
                return all(series and float(series[0]["value"][1]) < threshold / 4 for series in found)

            over = asyncio.Event()

            async def talk(who: int) -> None:
                said = 0
                while not over.is_set():
                    said += 1
                    assert (await faulty.say(fact(1_000 * who + said), user=f"user-{who}-{said % 9}")).status == 200

            await until(idle, "an idle sidecar is scraped", seconds=20)
            async with asyncio.TaskGroup() as group:
                for who in range(32):
                    group.create_task(talk(who))
                await until(saturated, "more is asked than it serves", seconds=40)
                over.set()
            await until(idle, "it rests", seconds=20)
