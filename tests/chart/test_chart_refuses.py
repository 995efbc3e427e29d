"""Combinations that lose memories, or show them to others, are refused with why and what instead."""

from __future__ import annotations

import pytest

from tests.support.chart import templated

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
A_GATEWAY = ["gateway.targetRefs[0].kind=Gateway", "gateway.targetRefs[0].name=public"]
TLS = ["tls.enabled=true", "tls.allowedNames={envoy}", "tls.secretName=x"]
LEARNER = ["learner.enabled=true"]
SCALED = ["learner.autoscaling.enabled=true"]
ROUTED = ["api.enabled=true", "api.route.enabled=true", "config.api.insecure=true", "config.api.auth={jwt}"]
PAGE = ["api.route.page=true", "api.route.hostnames={llm.example.com}"]
BACKUP = ["backup.enabled=true", "backup.claimName=copies"]
RESTORE = ["restore.enabled=true", "restore.claimName=copies", "restore.folder=20260801-024100"]


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
        (
            ["gateway.type=raw", "gateway.messageTimeout=2s", "config.recall.deadline=2s"],
            "is not more than the dead",
        ),
        (["gateway.messageTimeout=1s", "config.recall.hyde=true"], "the deadline of a recall, 1.5s"),
        (["config.role=serve", SERVER], "config.role: serve with files"),
        (["config.role=learn", SERVER, REDIS, "gateway.type=raw"], "a learning pod takes no requests"),
        (["config.memory.milvus.token=s"], "config.memory.milvus.token in plain words"),
        (["config.memory.embedding.access_key=s"], "{setting: memory.embedding.access_key_file"),
        ([SERVER, "config.coordination.url=redis://me:word@redis"], "config.coordination.url with a password"),
        (["metrics.serviceMonitor.enabled=true", "metrics.podMonitor.enabled=true"], "scraped twice"),
        (["autoscaling.keda.enabled=true"], "autoscaling.keda.enabled without autoscaling.enabled"),
        (["autoscaling.enabled=true", "autoscaling.keda.enabled=true"], "KEDA has nowhere to ask"),
        ([*ISTIO, *CHAT_ROUTE], "an EnvoyFilter applies to a whole Gateway"),
        (["gateway.type=raw", *CHAT_ROUTE], "only Envoy Gateway's policies and Istio's have them"),
        ([*ISTIO, "gateway.istio.selector.istio=x", *A_GATEWAY], "Istio takes one of them"),
        (["gateway.type=raw", "gateway.istio.mesh=ambient"], "only Istio's gateway reads it"),
        ([*ISTIO, "gateway.istio.mesh=sidecar", *TLS], "the mesh encrypts already"),
        ([*ISTIO, "gateway.istio.mesh=ambient", "mode=sidecar", KEPT], "no network between Envoy and the Unix"),
        ([*ISTIO, *ROUTED, "gateway.istio.selector.istio=x"], "a VirtualService needs the names"),
        ([*ISTIO, *ROUTED, "mode=sidecar"], "of which this chart has no Service to lead to"),
        ([*ISTIO, *ROUTED, "config.api.auth={trusted_proxy}"], "the Gateway is no peer on the pod's own machine"),
        ([*ISTIO, *ROUTED, "config.api.auth={jwt,none}"], "could read and erase anybody's memories"),
        (["api.route.page=true"], "api.route.page without api.route.enabled"),
        ([*ISTIO, *ROUTED, "api.route.page=true"], "any site could speak to it through a reader's browser"),
        (
            [*ISTIO, *ROUTED, *PAGE, "config.console.hosts={a.example.com}"],
            "the chart writes it from api.route.hostnames",
        ),
        (["mode=daemonset", "replicas=0", SERVER, REDIS, KEPT], "there is nothing that it would stop"),
        (["lifecycle.preStop.sleep.seconds=1"], "use drain.preStop"),
        (["backup.enabled=true", SERVER, REDIS], "backup.enabled without backup.claimName"),
        ([*BACKUP, "backup.schedule="], "a copy beside it would be of no one moment"),
        ([*BACKUP, "replicas=0"], "the pod would have to be stopped each time"),
        ([*BACKUP, "persistence.enabled=false", KEPT], "there is nothing that a Job could mount"),
        ([*RESTORE, "restore.folder="], "restore.enabled without restore.folder"),
        ([*RESTORE, SERVER, REDIS], "they would learn beside it and hold what it replaces"),
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
        ([*LEARNER, SERVER], "learner.enabled with the SQLite journal"),
        ([*LEARNER, REDIS], "learner.enabled with Milvus Lite"),
        ([*LEARNER, SERVER, REDIS, "config.role=learn"], "Remove config.role"),
        (
            [*LEARNER, SERVER, REDIS, *SCALED, "learner.autoscaling.minReplicas=9"],
            "is more than learner.autoscaling",
        ),
        (
            [*LEARNER, SERVER, REDIS, "learner.autoscaling.keda.enabled=true"],
            "learner.autoscaling.keda.enabled without learner.autoscaling.enabled",
        ),
        (
            [*LEARNER, SERVER, REDIS, *SCALED, "learner.autoscaling.cpu=0"],
            "learner.autoscaling.enabled without a metric",
        ),
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
def test_what_would_lose_or_show_memories_is_refused(settings: list[str], said: str) -> None:
    refused = templated(settings=settings)
    assert refused.returncode != 0
    assert said in refused.stderr


@pytest.mark.parametrize("version", ["3", "4"])
def test_all_that_is_wrong_is_said_at_once(version: str) -> None:
    refused = templated(version=version, settings=["replicas=3", "persistence.enabled=false", "api.enabled=true"])
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
        ("fullnameOverride=Memory", "fullnameOverride"),
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
        [*LEARNER, SERVER, REDIS],
        [*LEARNER, SERVER, REDIS, "mode=sidecar", "gateway.type=raw", KEPT],
        [*LEARNER, SERVER, REDIS, "mode=daemonset", KEPT],
        ["replicas=2", SERVER, REDIS, "api.enabled=true", *API_OF_TWO],
        ["gateway.type=envoy-gateway", *CHAT_ROUTE, "gateway.mergeType=JSONMerge"],
        ["mode=sidecar", "replicas=4", SERVER, REDIS, KEPT],
        [*ISTIO, *A_GATEWAY],
        ["gateway.type=raw", "mode=sidecar", KEPT, *ROUTED, "config.api.audit.directory=/audit"],
        [*BACKUP, "replicas=0", "backup.schedule="],
        [*BACKUP, SERVER, REDIS],
        [*RESTORE, "replicas=0"],
        ["gateway.type=raw", "config.limits.request_body=16MiB"],
        ["gateway.type=raw", "config.limits.request_body=32MiB", "gateway.bufferLimit=33554432"],
    ],
)
def test_what_is_written_down_or_made_safe_is_taken(settings: list[str]) -> None:
    assert templated(settings=settings).returncode == 0
