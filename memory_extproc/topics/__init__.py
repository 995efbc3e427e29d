"""What a session was about: its turns gathered into topics, topics and sessions summed up, in the background."""
