"""A PgBouncer for benches: as `sandbox up` starts one, gone at the end whatever happens."""

from __future__ import annotations

import contextlib
import resource
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from shardctl.pgbouncer import render
from shardctl.pgbouncer.console import Console
from shardctl.sandbox import poolers
from shardctl.sandbox.poolers import Server
from shardctl.topology import names
from tests.bench import fleet
from tests.fixtures.servers.postgres import free_ports, local_pooler, stop_all_below

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardctl.pgbouncer.render import Entry
    from shardctl.topology.model import Pooler, Topology
    from tests.bench.fleet import Fleet

    Connection = psycopg.Connection[Any]

IN_USE = 1_000
"""Aliases with a connection to their server, at most: each is a process of PostgreSQL."""
SPARE = 100
"""Connections that a server takes beyond those, for load and bench."""

_OPEN_FILES = 8192
_CLIENTS = "max_client_conn = 1000"  # of the sandbox's file
_MORE_CLIENTS = "max_client_conn = 4000"


@dataclass(slots=True)
class Pooled:
    """A PgBouncer that runs before a fleet of two nodes, with an alias for each shard and node."""

    topology: Topology
    pooler: Pooler
    server: Server

    @property
    def aliases(self) -> list[str]:
        """The aliases of the shards."""
        return [self.topology.schema(shard) for shard in sorted(self.topology.owners())]

    @property
    def another(self) -> str:
        """An alias that leads to the same server whoever has which shards."""
        return names.of_node(self.topology.database.name, list(self.topology.nodes)[-1])

    def console(self) -> Console:
        """Log in to the console."""
        return Console(self.pooler, self.topology.database, purpose="bench")

    def connect(self, alias: str, *, user: str = "app") -> Connection:
        """Log in to an alias, or to the console as a driver would."""
        given: dict[str, Any] = {"autocommit": True, "prepare_threshold": None}
        return psycopg.connect(
            host=self.pooler.host, port=self.pooler.port, dbname=alias, user=user, **given
        )

    def entries(self) -> list[Entry]:
        """List what the pooler should offer."""
        return render.entries(self.topology, self.pooler)

    def offer(self) -> None:
        """Write the file of aliases; the pooler has yet to be told."""
        text = render.databases(self.topology, self.pooler, 1)
        self.pooler.databases_file.write_text(text, encoding="utf-8")

    def exchange(self) -> None:
        """Let each of the two nodes have the other's shards from now on."""
        a, b = self.topology.nodes.values()
        nodes = {a.name: replace(a, shards=b.shards), b.name: replace(b, shards=a.shards)}
        self.topology = replace(self.topology, nodes=nodes)

    def memory(self) -> float:
        """Give the megabytes that are resident."""
        lines = (self._proc() / "status").read_text().splitlines()
        (resident,) = (line.split()[1] for line in lines if line.startswith("VmRSS:"))
        return int(resident) / 1024

    def scheduled(self) -> tuple[float, float]:
        """Give the seconds that it ran so far, and those that it was kept waiting for a core."""
        ran, waited, _ = (self._proc() / "schedstat").read_text().split()
        return int(ran) / 1e9, int(waited) / 1e9

    def _proc(self) -> Path:
        return Path(f"/proc/{self.server.running()}")


def prepare(running: Fleet, connections: int) -> None:
    """Make the database and its role on empty servers, and let them take so many connections.

    That is all that a pooler needs: what the aliases lead to is the same on both servers.
    """
    for connection in running.each():
        connection.execute("CREATE ROLE app LOGIN")
        connection.execute("CREATE DATABASE app OWNER app")
    running.restart("max_connections", connections)


@contextlib.contextmanager
def pooled(running: Fleet, shards: int) -> Iterator[Pooled]:
    """Start a PgBouncer as `sandbox up` would, with aliases for so many shards; it ends here."""
    program = poolers.program()
    if program is None:
        raise RuntimeError("PgBouncer is not installed here")
    _allow_open_files()
    folder = running.directory / f"pooler{shards}"
    [port] = free_ports(1)
    aliases = folder / "databases.ini"
    pooler = local_pooler(folder, "p1", port, databases_file=aliases)
    topology = replace(running.topology(shards), poolers={pooler.name: pooler})
    server = Server.of(topology, pooler, program)
    text = server.configuration.replace(_CLIENTS, _MORE_CLIENTS)
    one = Pooled(topology, pooler, replace(server, configuration=text))
    try:
        one.server.start()
        one.offer()
        with one.console() as console:
            console.reload()
        yield one
    finally:
        with fleet.undisturbed():
            stop_all_below(folder)


def median(values: Iterable[float]) -> str:
    """Show the seconds in the middle."""
    return milliseconds(statistics.median(values))


def milliseconds(value: float) -> str:
    """Show seconds, of which a hundredth of a millisecond matters."""
    return f"{value * 1000:.2f} ms"


def _allow_open_files() -> None:
    """Raise this process's limit, and so the pooler's: an open client is one here and two there."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
