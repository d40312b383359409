"""A topology file as far as applications need it: how they reach nodes, and where shards are.

shardctl itself reads the whole file and refuses every mistake (`loader`); this reads it without
pydantic, and refuses what it cannot use.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from shardctl.topology import defaults, fields, files
from shardctl.topology.build import databases_file
from shardctl.topology.model import (
    Database,
    IdSettings,
    MoveSettings,
    Node,
    NodeName,
    Pooler,
    PoolerName,
    ShardId,
    Topology,
)
from shardctl.topology.problems import Finding

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.topology.marks import Document
    from shardctl.topology.problems import Loc
    from shardctl.topology.syntax import Mark

Read = TypeVar("Read")


def load(path: Path) -> Topology:
    """Read a file; raises TopologyMissing, TopologyInvalid."""
    reader = _Reader(files.document(files.content(path), path))
    nodes = {NodeName(name): reader.node(name) for name in reader.section("nodes")}
    poolers = {PoolerName(name): reader.pooler(name, path) for name in reader.section("poolers")}
    topology = Topology(
        path=path,
        cluster=reader.value(fields.name, "cluster"),
        shard_count=reader.value(fields.count, "shards", "count"),
        schema_pattern=reader.value(fields.schema_pattern, "shards", "schema", of=defaults.SCHEMA),
        id=reader.ids(),
        database=reader.database(),
        nodes=nodes,
        poolers=poolers,
        move=MoveSettings(timedelta(), timedelta()),
    )
    reader.require_owners(topology)
    if reader.findings:
        raise files.invalid(path, reader.findings)
    return topology


class _Reader:
    """The values of a file, and what is wrong with them."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self.findings: list[tuple[Mark, Finding]] = list(document.flaws)

    def value(self, read: Callable[[object], Read], *loc: str, of: object = None) -> Read:
        """Read a value, or the default `of`; what is wrong with it becomes a finding."""
        found: Any = self._document.data
        for key in loc:
            found = found.get(key) if isinstance(found, dict) else None
        if found is None and of is None:
            self._wrong(loc, "missing")
        try:
            return read(of if found is None else found)
        except ValueError as error:
            if found is not None:
                self._wrong(loc, str(error))
        return None  # type: ignore[return-value]  # with findings nothing is made of it

    def section(self, *loc: str) -> dict[str, Any]:
        """Give a mapping; an empty one where there is none."""
        return self.value(_mapping, *loc, of={}) or {}

    def ids(self) -> IdSettings:
        """Read how ids are laid out."""
        for loc in (("id",), ("id", "bits")):
            self.section(*loc)
        epoch = self.value(fields.epoch, "id", "epoch", of=defaults.EPOCH)
        tick = self.value(fields.positive_duration, "id", "tick", of=defaults.TICK)
        time = self.value(fields.bits, "id", "bits", "time", of=defaults.TIME_BITS)
        shard = self.value(fields.bits, "id", "bits", "shard", of=defaults.SHARD_BITS)
        sequence = self.value(fields.bits, "id", "bits", "sequence", of=defaults.SEQUENCE_BITS)
        return IdSettings(
            epoch_ms=0 if epoch is None else fields.epoch_ms(epoch),  # None is a finding
            tick_ms=1 if tick is None else fields.milliseconds(tick),
            time_bits=time,
            shard_bits=shard,
            sequence_bits=sequence,
            generator="strict",
        )

    def database(self) -> Database:
        """Read the database, and its roles for applications."""
        user = self.value(fields.role, "database", "user", of=defaults.USER)
        options = self.section("database", "options")
        return Database(
            name=self.value(fields.database_name, "database", "name"),
            user=user,
            app_roles=self.value(_roles, "database", "app_roles", of=[]) or (),
            replication_user=user,
            migrations=None,
            options={
                key: self.value(fields.setting, "database", "options", key) for key in options
            },
        )

    def node(self, name: str) -> Node:
        """Read a node: its address and shards."""
        host = self.value(fields.host, "nodes", name, "host")
        ranges = self.value(fields.shard_ranges, "nodes", name, "shards") or ()
        shards = [ShardId(s) for first, last in sorted(ranges) for s in range(first, last + 1)]
        return Node(
            name=NodeName(name),
            host=host,
            port=self.value(fields.port, "nodes", name, "port"),
            shards=tuple(shards),
            data_directory=None,
            bin_directory=None,
            os_user=None,
            settings={},
            pooler_host=host,
            ssh=None,
            control=None,
        )

    def pooler(self, name: str, path: Path) -> Pooler:
        """Read a pooler: its address, and the kinds of its aliases."""
        given = self.value(fields.path, "poolers", name, "config")
        config = Path(os.path.abspath(path.parent / (given or "")))  # noqa: PTH100  # as in build
        return Pooler(
            name=PoolerName(name),
            host=self.value(fields.host, "poolers", name, "host"),
            port=self.value(fields.port, "poolers", name, "port"),
            config=config,
            databases_file=databases_file(config),
            admin_user="",
            aliases=self.value(_aliases, "poolers", name, "aliases", of=list(defaults.ALIASES)),
            os_user=None,
            ssh=None,
        )

    def require_owners(self, topology: Topology) -> None:
        """Find shards that no node has, or more than one."""
        if self.findings:
            return
        owned = sorted(shard for node in topology.nodes.values() for shard in node.shards)
        if owned != list(range(topology.shard_count)):
            self._wrong(
                ("nodes",),
                f"not every shard from 0 to {topology.shard_count - 1} is on exactly one node; "
                "`shardctl verify` shows which",
            )

    def _wrong(self, loc: Loc, message: str) -> None:
        finding = Finding(loc, message)
        self.findings.append((self._document.place(finding), finding))


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("expected keys and values")  # noqa: TRY004  # as all readers of fields
    return value


def _roles(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError("expected a list")  # noqa: TRY004  # same
    return tuple(map(fields.role, value))


def _aliases(value: object) -> Any:
    if not isinstance(value, list) or not {*map(str, value)} <= {"shard", "node"}:
        raise ValueError("expected a list of node, shard or both")
    return tuple(value)
