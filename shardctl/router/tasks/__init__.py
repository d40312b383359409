"""The router for asyncio, from which `make docs` writes the router for threads."""
