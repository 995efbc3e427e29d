"""What memory costs: latency, throughput, streamed answers, start, growth. `python -m benchmarks --help`."""
