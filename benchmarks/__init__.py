"""The cost of memory: latency, throughput, streamed answers, start, growth. `python -m benchmarks --help`."""
