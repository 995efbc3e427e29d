"""In-memory adapters and scripted models, which pass the contract suites of the real ones.

For tests and demonstrations: nothing here needs a network, and nothing survives the process."""
