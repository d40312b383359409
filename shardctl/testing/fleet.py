"""A throw-away fleet that runs for the time of a test session."""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psycopg.conninfo import make_conninfo

from shardctl import fanout
from shardctl.errors import Misused, ShardctlError, Unfinished
from shardctl.provision import fleet as provision
from shardctl.sandbox import servers
from shardctl.sandbox.new import HOST
from shardctl.testing import derive, directory, ports
from shardctl.testing.emptying import Tables
from shardctl.testing.environment import without_libpq
from shardctl.topology import loader, routes
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardctl.topology.model import Topology

FILE = "topology.yaml"


@dataclass(frozen=True, slots=True)
class ShardFleet:
    """A running fleet with the application's schemas."""

    topology: Path
    """The fleet's own topology.yaml, for the application."""
    nodes: tuple[str, ...]
    shard_count: int
    _topology: Topology = field(repr=False)
    _tables: tuple[Tables, ...] = field(repr=False)

    def dsn(self, node: str, *, user: str | None = None) -> str:
        """Return a connection string of a node, for the application's first role.

        Raises node_not_there.
        """
        found = self._topology.nodes.get(NodeName(node))
        if found is None:
            raise Misused(
                "node_not_there",
                f"unknown node {node!r} of the test fleet: its nodes are {', '.join(self.nodes)}",
            )
        database = self._topology.database
        role = user or next(iter(database.app_roles), database.user)
        passfile = database.options.get("passfile") if role == database.user else None
        # With its address, because PGHOSTADDR might name another.
        return make_conninfo(
            host=found.host, hostaddr=HOST, port=found.port, dbname=database.name, user=role,
            passfile=passfile,
        )  # fmt: skip

    def schema(self, shard: int) -> str:
        """Return the schema of a shard; raises ShardNotFound."""
        return routes.of_shard(self._topology, shard).schema

    def node_of(self, shard: int) -> str:
        """Return the node of a shard; raises ShardNotFound."""
        return routes.of_shard(self._topology, shard).node.name

    def reset(self) -> None:
        """Reset all tables to their contents after the migrations.

        Raises not_reset and NodeUnavailable, several as Problems.
        """
        with without_libpq():
            fanout.collect(self._tables, Tables.empty, width=servers.WIDTH).every()


@contextmanager
def running(application: Path, *, shards: int, nodes: int) -> Iterator[ShardFleet]:
    """Run a fleet for an application's topology file, with its migrations.

    `shards` is limited by the file's number of shards, `nodes` by `shards`. Raises ShardctlError
    if it cannot start.
    """
    wanted = loader.load(application)
    shards = min(shards, wanted.shard_count)
    directory.sweep(_stop)
    with directory.made() as place, ports.held(HOST, min(nodes, shards)) as free:
        text = derive.render(wanted, directory=place, shards=shards, ports=free)
        # Rename it when it is complete: `sweep` of another session reads it.
        (place / f"{FILE}.new").write_text(text, encoding="utf-8")
        file = (place / f"{FILE}.new").rename(place / FILE)
        topology = loader.load(file)
        try:
            with ExitStack() as stack:
                with without_libpq():
                    topology = servers.protected(topology)
                    servers.up(topology, fanout.Silent())
                    plan = provision.plan_init(topology)
                    provision.carry_out(plan, provision.Options(), fanout.Silent())
                    tables = _read(topology, stack)
                yield ShardFleet(file, tuple(map(str, topology.nodes)), shards, topology, tables)
        finally:
            _stop(place)


def report(error: ShardctlError) -> str:
    """Format an error as the command does, for the output of a test run.

    Leaves out the advice to run a command again: a fleet is always created from scratch.
    """
    parts = [part for part in error.parts() if not isinstance(part, Unfinished)]
    lines = []
    for part in parts or error.parts():
        lines.append(str(part) if part.located else f"shardctl: {part}")
        if part.hint:
            lines.append(f"  {part.hint}")
    return "\n".join(lines)


def _read(topology: Topology, stack: ExitStack) -> tuple[Tables, ...]:
    """Read the tables of all nodes; the stack closes them."""
    found = fanout.collect(
        topology.nodes.values(), lambda node: Tables(node, topology.database), width=servers.WIDTH
    )
    for _, tables in found.values:
        stack.enter_context(closing(tables))
    return tuple(found.every())


def _stop(place: Path) -> None:
    """Stop and remove the servers of a directory that were started."""
    if (place / FILE).exists():
        servers.down(loader.load(place / FILE), fanout.Silent(), delete=True)
