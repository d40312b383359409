"""shardctl: the operator's command line for a sharded PostgreSQL fleet."""

__version__ = "0.1.0"
