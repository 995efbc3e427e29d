"""Texts at rest: sealed on their way to store and journal, opened on their way back."""
