"""A valid file as the values of `model`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardctl.topology.fields import milliseconds
from shardctl.topology.model import (
    Control,
    Database,
    IdSettings,
    MoveSettings,
    Node,
    NodeName,
    Pooler,
    PoolerName,
    ShardId,
    Ssh,
    Topology,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from shardctl.topology.spec import FileSection, NodeSection, PoolerSection, SshSection


PASSFILE = "sandbox.pgpass"
"""The file with the password of a sandbox's superuser, beside the data directories."""


def build(file: FileSection, path: Path, folder: Path) -> Topology:
    """Make a topology of a file that all rules have passed; expands its ranges."""
    database = file.database
    nodes = {NodeName(n): _node(NodeName(n), node, folder) for n, node in file.nodes.items()}
    passfile = sandbox_passfile(nodes.values())
    # `exists` of pathlib raises where this user may not look.
    known = {"passfile": str(passfile)} if passfile and os.path.exists(passfile) else {}  # noqa: PTH110
    return Topology(
        path=path,
        cluster=file.cluster,
        shard_count=file.shards.count,
        schema_pattern=file.shards.pattern,
        id=IdSettings(
            epoch_ms=file.id.epoch,
            tick_ms=milliseconds(file.id.tick),
            **{f"{part}_bits": width for part, width in file.id.bits},
            generator=file.id.generator,
        ),
        database=Database(
            **vars(database)
            | {
                "app_roles": tuple(database.app_roles),
                "replication_user": database.replication_user or database.user,
                "migrations": _path(database.migrations, folder),
                "options": known | database.options,
                "subscription_options": known | database.subscription_options,
            }
        ),
        nodes=nodes,
        poolers={
            PoolerName(n): _pooler(PoolerName(n), pooler, folder, database.user)
            for n, pooler in file.poolers.items()
        },
        move=MoveSettings(**dict(file.move)),
        key_rule=file.shards.key,
    )


def sandbox_passfile(nodes: Collection[Node]) -> Path | None:
    """Name the passfile of a sandbox; None where some node is none of this machine's."""
    places = [node.data_directory for node in nodes if node.data_directory is not None]
    if not places or any(node.ssh is not None for node in nodes):
        return None
    return places[0].with_name(PASSFILE)


def known_passfile(topology: Topology) -> Path | None:
    """Name the passfile of the sandbox, if the topology's logins use it."""
    path = sandbox_passfile(topology.nodes.values())
    return path if topology.database.options.get("passfile") == str(path) else None


def sandbox_password(topology: Topology) -> str | None:
    """Read the password of a sandbox's superuser; None where it has none. Raises OSError."""
    path = known_passfile(topology)
    return None if path is None else path.read_text(encoding="ascii").splitlines()[0]


def _node(name: NodeName, node: NodeSection, folder: Path) -> Node:
    shards = (ShardId(s) for first, last in sorted(node.shards) for s in range(first, last + 1))
    made = {
        "name": name,
        "shards": tuple(shards),
        "pooler_host": node.pooler_host or node.host,
        "ssh": _ssh(node.ssh, node.host, folder),
        "control": None if node.control is None else Control(**dict(node.control)),
        **_paths(folder, data_directory=node.data_directory, bin_directory=node.bin_directory),
    }
    return Node(**dict(node) | made)


def _pooler(name: PoolerName, pooler: PoolerSection, folder: Path, user: str) -> Pooler:
    paths = _paths(folder, config=pooler.config, databases_file=pooler.databases_file)
    made = {
        "name": name,
        "admin_user": pooler.admin_user or user,
        "aliases": tuple(pooler.aliases),
        "ssh": _ssh(pooler.ssh, pooler.host, folder),
        **paths,
        "databases_file": paths["databases_file"] or databases_file(paths["config"]),
    }
    return Pooler(**dict(pooler) | made)


def databases_file(config: Path) -> Path:
    """Name the file with the aliases where the topology names none.

    >>> databases_file(Path("/etc/pgbouncer/pgbouncer.ini")).name
    'pgbouncer.databases.ini'
    """
    return config.with_name(f"{config.stem}.databases.ini")


def _ssh(ssh: SshSection | None, host: str, folder: Path) -> Ssh | None:
    if ssh is None:
        return None
    key_file = None if ssh.key_file is None else os.path.expanduser(ssh.key_file)  # noqa: PTH111  # an unknown ~user is no error here
    return Ssh(**dict(ssh) | {"host": ssh.host or host, "key_file": _path(key_file, folder)})


def _paths(folder: Path, **paths: str | None) -> dict[str, Any]:
    """Give paths of the file, and as `relative` the keys of those that begin at its folder."""
    relative = tuple(key for key, path in paths.items() if path and not Path(path).is_absolute())
    return {key: _path(path, folder) for key, path in paths.items()} | {"relative": relative}


def _path(text: str | None, folder: Path) -> Path | None:
    return None if text is None else Path(os.path.abspath(folder / text))  # noqa: PTH100  # pathlib keeps `..`
