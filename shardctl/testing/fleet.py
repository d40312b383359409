"""A throw-away fleet that runs for the time of a test session.

The data of fleets that were just made is kept, so that the next ones start from a copy. Each is one
file of tar, in a directory of the user's own: it is there whole or not at all, whatever removes old
files of a temporary directory, and who reads it needs no lock.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import stat
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from psycopg.conninfo import make_conninfo

from shardctl import fanout
from shardctl.errors import Refused, ShardctlError, Unfinished
from shardctl.hosts import accounts
from shardctl.hosts.local import Local
from shardctl.postgres import binaries
from shardctl.provision import fleet as provision
from shardctl.provision.plan import Options
from shardctl.router.core import IN_TESTS
from shardctl.sandbox import new, servers
from shardctl.state import migrations
from shardctl.testing import directory
from shardctl.testing.directory import without_libpq
from shardctl.testing.emptying import Tables
from shardctl.topology import loader, marks, ranges, routes
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardctl.topology.model import Topology


@contextmanager
def held_ports(host: str, count: int) -> Iterator[Sequence[int]]:
    """Reserve free ports: a server may listen on them, but the system assigns them to no other.

    A bound socket that does not listen keeps its port from programs that ask for any free port.
    With SO_REUSEADDR, which PostgreSQL also sets, another socket may still listen on it.
    """
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            holder = stack.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((host, 0))
            found.append(int(holder.getsockname()[1]))
        yield found


SETTINGS = {
    # The data is deleted after the tests, so it need not survive a crash.
    "fsync": "off",
    # A test can move a shard.
    "wal_level": "logical",
    "shared_buffers": "16MB",
    # A reset empties the tables of many shards in one transaction, with a lock for each.
    "max_locks_per_transaction": "256",
    # The router takes it from the topology: its calls refuse to miss what a test did not commit.
    IN_TESTS: "on",
}
"""Server parameters of every node."""

FILE = "topology.yaml"
SANDBOX = ".sandbox"
"""The directory of the servers' user, in which their data is."""


@dataclass(slots=True)
class ShardFleet:
    """A running fleet with the application's schemas."""

    topology: Path
    """The fleet's own topology.yaml, for the application."""
    nodes: tuple[str, ...]
    shard_count: int
    _topology: Topology = field(repr=False)
    _tables: Sequence[Tables] = field(repr=False)

    def dsn(self, node: str, *, user: str | None = None) -> str:
        """Return a connection string of a node, for the application's first role.

        Raises KeyError for a node that it does not have.
        """
        found = self._topology.nodes[NodeName(node)]
        database = self._topology.database
        role = user or next(iter(database.app_roles), database.user)
        passfile = database.options.get("passfile") if role == database.user else None
        # With its address, because PGHOSTADDR might name another.
        return make_conninfo(
            host=found.host, hostaddr=new.HOST, port=found.port, dbname=database.name, user=role,
            passfile=passfile,
        )  # fmt: skip

    def schema(self, shard: int) -> str:
        """Return the schema of a shard; raises ShardNotFound."""
        return routes.of_shard(self._topology, shard).schema

    def node_of(self, shard: int) -> str:
        """Return the node of a shard; raises ShardNotFound."""
        return routes.of_shard(self._topology, shard).node.name

    def shard_move(self, shard: int, to: str) -> None:
        """Move a shard to another node, as `shardctl move-shards` does, while clients work.

        It stays there; the next move can bring it back. Raises what a move raises.
        """
        # What moves needs is much, and most tests move nothing.
        from shardctl.moves import plan, prune, service  # noqa: PLC0415

        settings = self._topology.move
        options = plan.Options(settings.max_pause.total_seconds(), 0.0)
        with without_libpq():
            topology = loader.load(self.topology)
            decided = service.plan(topology, [shard], to, options, method=plan.STREAM)
            service.preflight(topology, decided)
            notice = logging.getLogger(__name__).info
            service.start(topology, decided, fanout.Silent(), notice)
            self._topology = topology = loader.load(self.topology)
            given = dict(zip(map(NodeName, self.nodes), self._tables, strict=True))
            for schema in decided.schemas:
                given[decided.source].give(schema, given[decided.target])
            ledger = service.read(topology)
            found = prune.plan(
                topology, ledger, accept_unconfirmed=False, now=True, purpose="shardctl test fleet"
            )
            droppable = [one for one in found if one.why_not is None]
            prune.carry_out(topology, droppable, fanout.Silent())

    def reset(self) -> None:
        """Reset all tables to their contents after the migrations.

        Raises not_reset and NodeUnavailable, several as Problems.
        """
        with without_libpq():
            fanout.collect(self._tables, Tables.empty, width=servers.WIDTH).every()


@contextmanager
def running(
    application: Path,
    *,
    shards: int | None = None,
    nodes: int = 2,
    ports: Sequence[int] | None = None,
) -> Iterator[ShardFleet]:
    """Run a fleet for an application's topology file; see `shardctl.testing.running`."""
    for what, number in (("shards", shards), ("nodes", nodes)):
        if number is not None and number < 1:
            raise ValueError(f"{what}: expected a number from 1, found {number}")
    wanted = loader.load(application)
    shards = min(shards or wanted.shard_count, wanted.shard_count)
    nodes = min(nodes, shards)
    if ports is not None and len(ports) != nodes:
        raise ValueError(f"ports: expected one for each of {nodes} nodes, found {len(ports)}")
    directory.sweep(_stop)
    owner = os.getpid()
    chosen = nullcontext(ports) if ports is not None else held_ports(new.HOST, nodes)
    with directory.made() as place, chosen as free:
        try:
            with without_libpq():
                called = template_name(wanted, shards=shards, nodes=nodes)
                unpack_template(called, place, partial(_make, wanted, shards, nodes))
                topology = _written(wanted, place, shards, free)
                servers.up(topology, fanout.Silent())
                read = partial(Tables, database=topology.database)
                tables = fanout.collect(topology.nodes.values(), read, width=servers.WIDTH).every()
            names = tuple(map(str, topology.nodes))
            yield ShardFleet(place / FILE, names, shards, topology, tables)
        finally:
            if os.getpid() == owner:  # a child that was forked leaves the servers alone
                _stop(place)


def _make(wanted: Topology, shards: int, nodes: int, to: Path) -> None:
    """Make a fleet with its migrations, and pack what its servers leave when they have stopped."""
    with directory.made() as place, held_ports(new.HOST, nodes) as free:
        topology = _written(wanted, place, shards, free)
        try:
            topology = servers.protected(topology)
            servers.up(topology, fanout.Silent())
            plan = provision.plan_init(topology)
            provision.carry_out(plan, Options(), fanout.Silent())
            servers.down(topology, fanout.Silent(), delete=False)
            pack_template(place, [SANDBOX], to)
        finally:
            _stop(place)


def _written(wanted: Topology, place: Path, shards: int, free: Sequence[int]) -> Topology:
    """Write the topology of a fleet in `place`, and read it."""
    text = render(wanted, directory=place / SANDBOX, shards=shards, ports=free)
    # Rename it when it is complete: `sweep` of another session reads it.
    (place / f"{FILE}.new").write_text(text, encoding="utf-8")
    return loader.load((place / f"{FILE}.new").rename(place / FILE))


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


def _stop(place: Path) -> None:
    """Stop and remove the servers of a directory that were started."""
    if (place / FILE).exists():
        servers.down(loader.load(place / FILE), fanout.Silent(), delete=True)


_ONE_LINE = 2**20


def render(application: Topology, *, directory: Path, shards: int, ports: Sequence[int]) -> str:
    """Return a fleet's topology file: a node for each of these ports, with data in `directory`.

    Cluster, ids, schemas, database, roles, keys and migrations are those of the application's file.
    `shards` must be at least the number of ports. Poolers, hosts and libpq options are left out.
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


TEMPLATES = "shardctl-templates-"
KEPT = 3
"""How many files a user keeps; those used last stay."""
_NEW = ".new"


def template_name(application: Topology, *, shards: int, nodes: int) -> str:
    """Return the name of what a fleet starts from: a digest of all that it is made of.

    That is the topology, the migrations, PostgreSQL's programs, the user who runs them, and
    shardctl itself. Raises what reading the migrations and finding the programs raises.
    """
    account = accounts.server_account(None)
    found = binaries.find(None, account=account)
    server = Path(found.program("postgres")).stat()
    ports = range(1, nodes + 1)
    anywhere = replace(application, database=replace(application.database, migrations=None))
    made_of = [
        render(anywhere, directory=Path("/"), shards=shards, ports=ports),
        *((one.name, one.checksum) for one in migrations.read(application.database.migrations)),
        (str(found.directory), server.st_size, server.st_mtime_ns, account),
        *_package(),
    ]
    return hashlib.sha256(repr(made_of).encode()).hexdigest()[:32]


def unpack_template(called: str, into: Path, make: Callable[[Path], None]) -> None:
    """Unpack the files of that name into a directory; where there are none, `make` packs them.

    Another process that wants the same at this moment waits for the first. Raises
    templates_refused, CommandFailed (no space left), and what `make` raises.
    """
    folder = _folder()
    file = folder / f"{called}.tar"
    if _unpacked(file, into):
        return
    (folder / "lock").touch(mode=0o600)
    with directory.locked(folder / "lock"):
        if _unpacked(file, into):
            return
        for left in folder.glob(f"*{_NEW}"):  # of a killed process: this one has the lock
            left.unlink()
        new = folder / f"{called}{_NEW}"
        try:
            make(new)
            new.rename(file)
        finally:
            new.unlink(missing_ok=True)
        _forget(folder)
        _unpacked(file, into)


def pack_template(place: Path, names: Sequence[str], to: Path) -> None:
    """Pack these files and directories of stopped servers into a file; raises CommandFailed."""
    Local().run(["tar", "--sparse", "-cf", str(to), "-C", str(place), *names])
    with to.open("rb") as file:
        os.fsync(file)


def _unpacked(file: Path, into: Path) -> bool:
    """Unpack a file, unless it is missing."""
    try:
        os.utime(file)  # what was just used is not removed
    except FileNotFoundError:
        return False
    Local().run(["tar", "-xpf", str(file), "-C", str(into)])
    return True


def _forget(folder: Path) -> None:
    """Remove the files that were not used for longest."""
    by_use = sorted(folder.glob("*.tar"), key=lambda file: -file.stat().st_mtime)
    for old in by_use[KEPT:]:
        old.unlink()


def _folder() -> Path:
    """Make or find the directory of this user's files; raises templates_refused."""
    path = directory.base() / f"{TEMPLATES}{os.geteuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    private = not stat.S_IMODE(found.st_mode) & 0o077
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or not private:
        raise Refused(
            "templates_refused",
            f"{path} is not a directory that only this user can read and write",
            hint="remove it, or set $TMPDIR to another directory",
        )
    return path


def _package() -> Iterator[tuple[str, int, int]]:
    """List shardctl's own files, with size and time of change."""
    package = Path(__file__).parents[1]
    for file in sorted(package.rglob("*")):
        if file.suffix in {".py", ".sql", ".j2", ".sh"}:
            found = file.stat()
            yield str(file.relative_to(package)), found.st_size, found.st_mtime_ns
