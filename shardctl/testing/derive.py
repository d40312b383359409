"""Derives the topology of a test fleet from an application's: fewer shards, local nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from shardctl.router.core import IN_TESTS
from shardctl.sandbox import new
from shardctl.topology import marks, ranges

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardctl.topology.model import Topology

SETTINGS = {
    # The data is deleted after the tests, so it need not survive a crash.
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    # A test can move a shard.
    "wal_level": "logical",
    "shared_buffers": "16MB",
    # A reset empties the tables of many shards in one transaction, with a lock for each.
    "max_locks_per_transaction": "256",
    # The router takes it from the topology: its calls refuse to miss what a test did not commit.
    IN_TESTS: "on",
}
"""Server parameters of every node."""

_ONE_LINE = 2**20


def render(application: Topology, *, directory: Path, shards: int, ports: Sequence[int]) -> str:
    """Return the file's text: a node for each of these ports, with data in `directory`.

    Cluster, ids, schemas, database, roles, keys and migrations are those of its file. `shards` must
    be at least the number of ports. Poolers, hosts and libpq options are left out.
    """
    runs = new.spread(shards, len(ports))
    nodes = {
        new.node_name(index): {
            "host": new.HOST,
            "port": port,
            "shards": ranges.of(run),
            "data_directory": str(directory / new.node_name(index)),
            "settings": dict(SETTINGS),  # YAML's dumper writes an alias for what is repeated
        }
        for index, (port, run) in enumerate(zip(ports, runs, strict=True))
    }
    data = marks.read(application.path.read_text(encoding="utf-8-sig")).data
    content = {key: data[key] for key in ("cluster", "id") if key in data}
    elsewhere = ("options", "subscription_options", "migrations")
    database = {key: one for key, one in data["database"].items() if key not in elsewhere}
    if application.database.migrations is not None:
        database["migrations"] = str(application.database.migrations)
    content |= {"shards": data["shards"] | {"count": shards}, "database": database, "nodes": nodes}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=_ONE_LINE)
