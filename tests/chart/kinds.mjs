// Reads YAML documents as JSON lines from standard input and checks each by the published schema of its kind.
// Prints a line for each that is not as its schema says, and one for each kind that is not known here.
import { createInterface } from "node:readline";

const packages = {
  "gateway.envoyproxy.io": "@kubernetes-models/envoy-gateway/gateway.envoyproxy.io",
  "gateway.networking.k8s.io": "@kubernetes-models/gateway-api/gateway.networking.k8s.io",
  "networking.istio.io": "@kubernetes-models/istio/networking.istio.io",
  "security.istio.io": "@kubernetes-models/istio/security.istio.io",
  "monitoring.coreos.com": "@kubernetes-models/prometheus-operator/monitoring.coreos.com",
  "cert-manager.io": "@kubernetes-models/cert-manager/cert-manager.io",
};

for await (const line of createInterface({ input: process.stdin })) {
  const document = JSON.parse(line);
  const [group, version] = document.apiVersion.split("/");
  const name = `${document.kind} ${document.metadata.name}`;
  if (!(group in packages)) {
    console.log(`${name}: no schema for ${document.apiVersion}`);
    continue;
  }
  const models = await import(`${packages[group]}/${version}`);
  if (!(document.kind in models)) {
    console.log(`${name}: no schema for ${document.kind} of ${document.apiVersion}`);
    continue;
  }
  try {
    new models[document.kind](document).validate();
    console.error(`${name}: checked`);
  } catch (error) {
    console.log(`${name}: ${error.message}`);
  }
}
