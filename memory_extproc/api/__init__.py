"""The memory API. `service` is the one entry; `authentication` decides who may call.

`call` checks a request and shapes its answer; `memories`, `forget`, `transfer`, `review` and `operator` carry it
out; `audit` records calls."""
