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
    """The fleet's own topology.yaml, to be given to the application."""
    nodes: tuple[str, ...]
    shard_count: int
    _topology: Topology = field(repr=False)
    _tables: tuple[Tables, ...] = field(repr=False)

    def dsn(self, node: str, *, user: str | None = None) -> str:
        """Write a connection string of a node, for the first of the application's roles.

        Raises node_not_there.
        """
        found = self._topology.nodes.get(NodeName(node))
        if found is None:
            raise Misused(
                "node_not_there",
                f"the test fleet has no node {node}; its nodes are {', '.join(self.nodes)}",
            )
        database = self._topology.database
        role = user or next(iter(database.app_roles), database.user)
        # With its address, or PGHOSTADDR would lead elsewhere.
        return make_conninfo(
            host=found.host, hostaddr=HOST, port=found.port, dbname=database.name, user=role
        )

    def schema(self, shard: int) -> str:
        """Name the schema of a shard; raises ShardNotFound."""
        return routes.of_shard(self._topology, shard).schema

    def node_of(self, shard: int) -> str:
        """Name the node of a shard; raises ShardNotFound."""
        return routes.of_shard(self._topology, shard).node.name

    def reset(self) -> None:
        """Bring all tables to what they held when the migrations had run.

        Raises not_reset and NodeUnavailable, several as Problems.
        """
        with without_libpq():
            fanout.collect(self._tables, Tables.empty, width=servers.WIDTH).every()


@contextmanager
def running(application: Path, *, shards: int, nodes: int) -> Iterator[ShardFleet]:
    """Run a fleet of the application whose topology file this is, with its migrations done.

    It has so many shards and nodes, but never more shards than the file has, and never more
    nodes than shards. Raises ShardctlError of what does not work.
    """
    wanted = loader.load(application)
    shards = min(shards, wanted.shard_count)
    directory.sweep(_stop)
    with directory.made() as place, ports.held(HOST, min(nodes, shards)) as free:
        text = derive.render(wanted, directory=place, shards=shards, ports=free)
        # Whole, or not there: who sweeps reads it.
        (place / f"{FILE}.new").write_text(text, encoding="utf-8")
        file = (place / f"{FILE}.new").rename(place / FILE)
        topology = loader.load(file)
        try:
            with ExitStack() as stack:
                with without_libpq():
                    servers.up(topology, fanout.Silent())
                    plan = provision.plan_init(topology)
                    provision.carry_out(plan, provision.Options(), fanout.Silent())
                    tables = _read(topology, stack)
                yield ShardFleet(file, tuple(map(str, topology.nodes)), shards, topology, tables)
        finally:
            _stop(place)


def told(error: ShardctlError) -> str:
    """Write an error as the command does, for people who see it among their tests.

    What is said of running a command again is left out: a fleet is always made anew.
    """
    parts = [part for part in error.parts() if not isinstance(part, Unfinished)]
    lines = []
    for part in parts or error.parts():
        lines.append(str(part) if part.located else f"shardctl: {part}")
        if part.hint:
            lines.append(f"  {part.hint}")
    return "\n".join(lines)


def _read(topology: Topology, stack: ExitStack) -> tuple[Tables, ...]:
    """Look at the tables of all nodes; they are closed with the stack."""
    found = fanout.collect(
        topology.nodes.values(), lambda node: Tables(node, topology.database), width=servers.WIDTH
    )
    for _, tables in found.values:
        stack.enter_context(closing(tables))
    return tuple(found.every())


def _stop(place: Path) -> None:
    """Stop and remove the servers of a directory, as far as they were begun."""
    if (place / FILE).exists():
        servers.down(loader.load(place / FILE), fanout.Silent(), delete=True)
