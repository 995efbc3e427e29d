"""Combinations that lose memories, or show them to others, are refused with why and what instead."""

from __future__ import annotations

import pytest

from tests.fixtures.chart import templated

SERVER = "config.memory.milvus.address=milvus:19530"
REDIS = "config.coordination.url=redis://redis:6379/0"
ISTIO = ["gateway.type=istio"]
CHAT_ROUTE = ["gateway.targetRefs[0].kind=HTTPRoute", "gateway.targetRefs[0].name=chat"]
API_OF_TWO = [
    "config.api.auth={jwt}",
    "config.api.insecure=true",
    "secrets[0].setting=api.secret_file,secrets[0].secretName=api,secrets[0].key=secret",
]
KEPT = "persistence.acceptLoss=true"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["replicas=2", REDIS], "replicas: 2 with Milvus Lite"),
        (["replicas=2", SERVER], "replicas: 2 with the SQLite journal"),
        (["mode=daemonset"], "mode: daemonset with Milvus Lite"),
        (["mode=sidecar", "replicas=2", REDIS], "mode: sidecar beside 2 Envoy pods (replicas) with Milvus Lite"),
        (["mode=sidecar"], "persistence.enabled in mode: sidecar without persistence.existingClaim"),
        (["mode=sidecar", SERVER, REDIS], "while turns that wait for Redis, and the audit log, are files"),
        (["mode=daemonset", SERVER, REDIS], "a DaemonSet's pods have no claims of their own"),
        (
            ["replicas=2", SERVER, REDIS, "persistence.enabled=false"],
            "turns that wait for Redis, and the audit log",
        ),
        (["replicas=2", SERVER, REDIS, "persistence.existingClaim=c"], "one claim serves one pod"),
        (["replicas=2", SERVER, REDIS, "api.enabled=true"], "no api.secret: each pod would make its own"),
        (
            ["api.enabled=true", "persistence.enabled=false", "persistence.acceptLoss=true"],
            "api.enabled with the audit log on an emptyDir",
        ),
        (["autoscaling.keda.enabled=true"], "autoscaling.keda.enabled without autoscaling.enabled"),
        (["autoscaling.enabled=true", "autoscaling.keda.enabled=true"], "KEDA has nowhere to ask"),
        ([*ISTIO, *CHAT_ROUTE], "only Envoy Gateway's policies have them"),
        (["gateway.type=envoy-ai-gateway", *CHAT_ROUTE], "Name Gateways only"),
        (["gateway.type=envoy-gateway", "gateway.mergeType=JSONMerge"], "has no parent to merge with"),
        (
            ["gateway.type=envoy-gateway", "gateway.policies.clientTraffic.create=false"],
            "nothing would remove the headers by which a client could name itself somebody else",
        ),
        (
            ["gateway.type=envoy-ai-gateway", "gateway.policies.envoyProxy.create=false"],
            "gateway.policies.envoyProxy.create: false without its existing",
        ),
        (
            ["gateway.type=envoy-gateway", "gateway.identity.mode=jwt", "gateway.policies.security.create=false"],
            "no token would be verified",
        ),
        (["autoscaling.enabled=true", SERVER], "autoscaling.enabled with the SQLite journal"),
        (["persistence.enabled=false"], "would be lost with the pod"),
        (["networkPolicy.enabled=false"], "whoever reaches the pod could read and write anybody's memories"),
        (["tls.enabled=true", "tls.secretName=x"], "without tls.allowedNames"),
        (["tls.enabled=true", "tls.allowedNames={envoy}"], "without a certificate"),
        (
            ["tls.enabled=true", "tls.allowedNames={envoy}", "tls.certManager.enabled=true"],
            "without tls.certManager.issuerRef.name",
        ),
        (
            ["tls.enabled=true", "tls.allowedNames={envoy}", "tls.secretName=x", "gateway.type=envoy-gateway"],
            "tls.enabled with gateway.type: envoy-gateway",
        ),
        (["mode=sidecar", "tls.enabled=true"], "there is no network between Envoy and the Unix socket"),
        (["api.enabled=true"], "api.enabled without config.api.auth"),
        (["api.enabled=true", "config.api.auth={jwt}"], "api.enabled without tls.enabled"),
        (["replicas=2", SERVER, REDIS, "podDisruptionBudget.maxUnavailable=2"], "lets every pod be away"),
        (["autoscaling.enabled=true", "autoscaling.minReplicas=9", "autoscaling.maxReplicas=3"], "is more than"),
        (["autoscaling.enabled=true", "autoscaling.cpu=0", SERVER, REDIS], "without a metric"),
        (["mode=daemonset", "autoscaling.enabled=true", SERVER, REDIS], "there is nothing to scale"),
        (["gateway.type=istio", "gateway.identity.mode=jwt"], "without issuer, audience and jwksUri"),
        (["gateway.type=raw", "gateway.failOpen=false"], "the model would be away whenever memory is"),
        (["gateway.type=envoy-gateway", "gateway.affinity.enabled=true"], "so nothing would be bound"),
        (["gateway.type=envoy-gateway", "gateway.bodies=full-duplex"], "does not let it fail open"),
        (["config.listen.http=0.0.0.0:1"], "config.listen is the chart's to say: use ports"),
        (
            ["gateway.type=raw", "config.identity.user_header=x-user"],
            'config.identity.user_header: "x-user" is not the header that the gateway strips, "x-authz-user-id"',
        ),
        (
            ["gateway.type=istio", "gateway.identity.tenantHeader=", "config.identity.tenant_header=x-org"],
            "Say it once, in gateway.identity.tenantHeader",
        ),
        (
            ["gateway.type=raw", "config.limits.request_body=32MiB"],
            "config.limits.request_body: 32MiB is more than gateway.bufferLimit: 16777216",
        ),
        (
            ["gateway.type=raw", "gateway.messageTimeout=2s", "config.envoy.message_timeout=3s"],
            "config.envoy.message_timeout: 3s is not gateway.messageTimeout: 2s",
        ),
        (["adoptJournal.enabled=true", SERVER, REDIS], "without adoptJournal.claimName"),
        (["adoptJournal.enabled=true", "adoptJournal.claimName=c"], "would move into a journal of the Job's own"),
        (["retentionJob.enabled=true", SERVER], "retentionJob.enabled without a Milvus server and Redis"),
    ],
    ids=lambda each: each if isinstance(each, str) else None,
)
@pytest.mark.parametrize("version", ["3", "4"])
def test_what_would_lose_or_show_memories_is_refused(version: str, settings: list[str], said: str) -> None:
    refused = templated(version=version, settings=settings)
    assert refused.returncode != 0
    assert said in refused.stderr


def test_all_that_is_wrong_is_said_at_once() -> None:
    refused = templated(settings=["replicas=3", "persistence.enabled=false", "api.enabled=true"])
    assert refused.stderr.count("\n- ") == 7


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("gateway.type=nginx", "gateway"),
        ("nosuch=1", "nosuch"),
        ("config.recall.nosuch=1", "nosuch"),
        ("config.memory.default_retrieval_limit=1000", "default_retrieval_limit"),
        ("config.recall.deadline=150", "deadline"),
        ("image.digest=latest", "digest"),
        ("ports.http=0", "http"),
        ("mode=statefulset", "mode"),
    ],
)
@pytest.mark.parametrize("version", ["3", "4"])
def test_values_outside_the_schema_are_refused_by_name(version: str, setting: str, said: str) -> None:
    refused = templated(version=version, settings=[setting])
    assert refused.returncode != 0
    assert said in refused.stderr


def test_a_secret_for_a_setting_that_holds_none_is_refused() -> None:
    setting = "secrets[0].setting=memory.milvus.address,secrets[0].secretName=a,secrets[0].key=b"
    refused = templated(settings=[setting])
    assert refused.returncode != 0
    assert "setting" in refused.stderr


@pytest.mark.parametrize(
    "settings",
    [
        ["persistence.enabled=false", "persistence.acceptLoss=true"],
        ["networkPolicy.enabled=false", "tls.acceptPlaintext=true"],
        ["replicas=2", SERVER, REDIS],
        ["replicas=2", SERVER, REDIS, "api.enabled=true", *API_OF_TWO],
        ["gateway.type=envoy-gateway", *CHAT_ROUTE, "gateway.mergeType=JSONMerge"],
        ["mode=sidecar", "replicas=4", SERVER, REDIS, KEPT],
        ["gateway.type=raw", "config.limits.request_body=16MiB"],
        ["gateway.type=raw", "config.limits.request_body=32MiB", "gateway.bufferLimit=33554432"],
    ],
)
def test_what_is_written_down_or_made_safe_is_taken(settings: list[str]) -> None:
    assert templated(settings=settings).returncode == 0
