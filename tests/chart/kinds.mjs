// Reads YAML documents as JSON lines from standard input and checks each by the published schema of its kind.
// Prints a line for each that is not as its schema says, for each field that the schema does not have (an API server
// leaves such a field out without a word), and for each kind that is not known here.
import { createInterface } from "node:readline";

const packages = {
  "gateway.envoyproxy.io": "@kubernetes-models/envoy-gateway/gateway.envoyproxy.io",
  "gateway.networking.k8s.io": "@kubernetes-models/gateway-api/gateway.networking.k8s.io",
  "networking.istio.io": "@kubernetes-models/istio/networking.istio.io",
  "security.istio.io": "@kubernetes-models/istio/security.istio.io",
  "monitoring.coreos.com": "@kubernetes-models/prometheus-operator/monitoring.coreos.com",
  "keda.sh": "@kubernetes-models/keda/keda.sh",
  "cert-manager.io": "@kubernetes-models/cert-manager/cert-manager.io",
};

// Free by their schemas: what stands there is somebody else's to check.
const free = [/^EnvoyFilter\.spec\.configPatches\.\d+\.patch\.value\./, /^EnvoyProxy\..*\.patch\.value\./];

// Istio's networking v1 has the fields of v1beta1; older packages have it under that name alone.
async function published(group, version) {
  try {
    return [await import(`${packages[group]}/${version}`), version];
  } catch (error) {
    if (group !== "networking.istio.io" || version !== "v1") throw error;
    return [await import(`${packages[group]}/v1beta1`), "v1beta1"];
  }
}

// The schemas come compiled, and a compiled schema looks at every field that it knows: what is left is unknown to it.
function watched(value, place, unseen, prototype = Object.prototype) {
  if (value === null || typeof value !== "object") return value;
  const copy = Array.isArray(value) ? [] : Object.create(prototype);
  for (const [key, inner] of Object.entries(value)) {
    copy[key] = watched(inner, `${place}.${key}`, unseen);
    if (!Array.isArray(value)) unseen.add(`${place}.${key}`);
  }
  return new Proxy(copy, {
    get(target, key, receiver) {
      unseen.delete(`${place}.${String(key)}`);
      return Reflect.get(target, key, receiver);
    },
  });
}

for await (const line of createInterface({ input: process.stdin })) {
  const document = JSON.parse(line);
  const [group, written] = document.apiVersion.split("/");
  const name = `${document.kind} ${document.metadata.name}`;
  if (!(group in packages)) {
    console.log(`${name}: no schema for ${document.apiVersion}`);
    continue;
  }
  const [models, version] = await published(group, written);
  document.apiVersion = `${group}/${version}`;
  if (!(document.kind in models)) {
    console.log(`${name}: no schema for ${document.kind} of ${document.apiVersion}`);
    continue;
  }
  const unseen = new Set();
  try {
    watched(document, document.kind, unseen, models[document.kind].prototype).validate();
    const unknown = [...unseen].filter((field) => !free.some((pattern) => pattern.test(field)));
    for (const field of unknown) console.log(`${name}: no field ${field}`);
    console.error(`${name}: checked`);
  } catch (error) {
    console.log(`${name}: ${error.message}`);
  }
}
