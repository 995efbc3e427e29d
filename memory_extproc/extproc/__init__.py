"""Envoy's external-processing protocol, and only that.

Read in the order in which a request passes: `server`, `http2` (its wire without TLS), `processor` (the pump around
one stream, and the only module with protobuf); `exchange` with its events and its table of legal transitions;
`duplex` and `observer` for the other ways Envoy can send an exchange; `response_capture` for the answer."""
