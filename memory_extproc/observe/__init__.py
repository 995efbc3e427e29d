"""One place for every metric, log event and span name."""
