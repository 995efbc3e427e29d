"""What a live gateway does to memory, found out from where its clients stand."""
