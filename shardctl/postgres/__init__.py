"""PostgreSQL: binaries, server control, connections, catalog."""

OLDEST_MAJOR = 14
"""The oldest PostgreSQL that shardctl works with."""
