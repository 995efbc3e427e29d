"""Topics of sessions: turns gathered into topics, topics and sessions summed up, in the background."""
