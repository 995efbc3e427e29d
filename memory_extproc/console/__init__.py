"""The memory API and a page over HTTP, on a port of their own (`listen.console`).

Begin with `server.py`: what listens, and which requests it lets through. The API's JSON itself is api/rest.py.
"""
