"""What users tell the assistant to remember or to forget: found in messages, and done."""
