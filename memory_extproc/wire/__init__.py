"""All that knows Envoy. An exchange is a state machine over plain values; the pump around it has the only
catch-all.

Where to read, in the order in which a request comes by:

- the stream: `server`, `processor` (the pump), `codec` (the only module with protobuf) and `events`;
- one exchange: `exchange` and its table of what may follow what; `duplex` and `observing` for other ways to
  be asked;
- the request: `admission` with `identity` and `rules`, `enrich` (`reading`, `deciding`, `placing`),
  `replays`, `compression`;
- the answer: `capture` with `coding`, `given` and `background` for what goes on behind it;
- Envoy's own configuration: `envoy_config*`, which nothing else here imports.
"""
