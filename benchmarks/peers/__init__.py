"""Other ways to remember, on the same memories and questions in one run: quality, time, CPU, memory and disk."""
