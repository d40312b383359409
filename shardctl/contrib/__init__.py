"""Frameworks on the router; nothing else of shardctl imports them."""
