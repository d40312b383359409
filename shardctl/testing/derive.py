"""Derives the topology of a test fleet from an application's: fewer shards, local nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from shardctl.ids import times
from shardctl.router.core import IN_TESTS
from shardctl.sandbox import new
from shardctl.topology import ranges

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

    Cluster, ids, schemas, database, roles, keys and migrations are the application's. `shards` must
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
    ids, database = application.id, application.database
    content: dict[str, Any] = {
        "cluster": application.cluster,
        "shards": {
            "count": shards,
            "schema": str(application.schema_pattern),
            "key": application.key_rule,
        },
        "id": {
            "epoch": times.render(ids.epoch_ms),
            "bits": {"time": ids.time_bits, "shard": ids.shard_bits, "sequence": ids.sequence_bits},
            "tick": f"{ids.tick_ms}ms",
            "generator": ids.generator,
        },
        "database": {
            "name": database.name,
            "user": database.user,
            "app_roles": list(database.app_roles),
            "replication_user": database.replication_user,
            "keys": dict(database.keys),
        },
        "nodes": nodes,
    }
    if database.migrations is not None:
        content["database"]["migrations"] = str(database.migrations)
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=_ONE_LINE)
