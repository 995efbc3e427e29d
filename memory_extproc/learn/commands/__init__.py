"""Users' commands to remember or to forget: found in messages, and carried out."""
