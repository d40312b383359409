"""PostgreSQL: binaries, server control, connections, catalog."""
