"""The Envoy configuration that goes with the sidecar: a `bootstrap`, and `manifests` for gateways."""
