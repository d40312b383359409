"""What a repack goes by: tables with their estimated bloat, leftovers, room, and the program.

pg_repack runs on this machine, and logs in as shardctl itself does: no row travels through it, so
the network does not matter, and hosts need neither a route there nor a password of their own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl import libpq
from shardctl.errors import Refused, ShardctlError, together
from shardctl.hosts import files
from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local
from shardctl.hosts.reach import host_of
from shardctl.libpq import reason_of
from shardctl.postgres import binaries, catalog, connection, queries
from shardctl.state import cluster, identity, ledger, observer
from shardctl.state.identity import node_unfit
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.postgres.catalog import Leftover
    from shardctl.postgres.connection import Connection
    from shardctl.state.ledger import Copy
    from shardctl.topology.model import Database, Node, NodeName, ShardId, Topology

QUERIES = queries.load("shardctl.maintenance", "repack.sql")
COMMAND = "repack"
MARK = "repacked file "
"""How the event of a repacked table begins; the number of its file and a colon come next."""

_LOCK_TIMEOUT = "1s"
_LONG_S = 60
NAME = "pg_repack"

_SETTINGS = {
    # A role's own limits would end sessions that wait on purpose.
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    # It tries for its own locks for a second at a time, but cleans up after itself without any
    # limit, while all other users of the table wait behind it.
    "lock_timeout": "2s",
    # What a killed program leaves running would hold its locks until the statement has ended.
    "client_connection_check_interval": "1s",
}
_TRANSACTION_TIMEOUT_SINCE = 17
_TAKES_CONNINFO_SINCE = (1, 5, 1)
_SERVES_OWNERS_SINCE = (1, 5, 2)
_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class Options:
    """What is chosen, and how it is done; `min_bloat` is a share from 0 to 1.

    A table that was repacked less than `recent_s` ago is left out. `jobs` are tables at a time
    on each node. A table that is in use for `wait_timeout_s` is given up or, to `terminate`, the
    sessions that use it are ended.
    """

    min_bloat: float
    recent_s: float
    jobs: int
    wait_timeout_s: int
    terminate: bool
    superuser_check: bool


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a shard; `bloat_bytes` None is one that ANALYZE has not seen yet.

    `index` is the one in whose order it is written again, and `order_by` its columns unless
    the table is clustered by it. `file` is where it is stored, and another one as soon as it
    is written again. `done_s` is how long ago it was repacked, None where it was
    not, or was rewritten by another session since.
    """

    shard: ShardId
    schema: str
    name: str
    oid: int
    file: int
    locked: bool
    permanent: bool
    keyed: bool
    size_bytes: int
    bloat_bytes: int | None
    index: str | None
    order_by: str | None
    done_s: float | None


@dataclass(frozen=True, slots=True)
class View:
    """One node; `free_bytes` is None where the room of its data directory is unknown."""

    tables: tuple[Table, ...]
    leftovers: tuple[Leftover, ...]
    version: str
    major: int
    free_bytes: int | None
    notes: tuple[str, ...]
    moves: tuple[Copy, ...]


def extension_missing(node: NodeName, database: str, *, available: bool) -> Refused:
    """Report a node in whose database the extension is not installed."""
    install = (
        "" if available else "install its package on that node's host (postgresql-NN-repack), "
    )
    return Refused(
        "extension_missing",
        f"node {node}: the extension pg_repack is not installed in database {database}",
        hint=f"{install}{'then ' if install else ''}run `CREATE EXTENSION pg_repack` in "
        "that database, as a superuser",
    )


def extension_broken(node: NodeName, what: str) -> Refused:
    """Report an extension whose library is gone, or of another version than its SQL."""
    return Refused(
        "extension_broken",
        f"node {node}: the extension pg_repack cannot be used: {what}",
        hint="when no pg_repack is running, run `DROP EXTENSION pg_repack`, then `CREATE "
        "EXTENSION pg_repack`",
    )


def look(
    topology: Topology, shards: frozenset[int], *, superuser_check: bool, purpose: str
) -> dict[NodeName, View]:
    """Ask the nodes that own these shards; changes nothing.

    Raises NodeUnavailable, node_unfit, format_too_new, extension_missing, extension_broken,
    superuser_needed, shards_elsewhere and move_unfinished, or Problems of several.
    """
    nodes = [node for node in topology.owning() if not shards.isdisjoint(node.shards)]

    def view(session: Connection, node: Node) -> View:
        wanted = [shard for shard in node.shards if shard in shards]
        return _view(session, topology, node, wanted, superuser_check=superuser_check)

    asked = observer.ask(topology, view, purpose=purpose, nodes=nodes)
    moves = {name: view.moves for name, view in asked.values.items()}
    if problems := asked.problems + unfinished(moves):
        raise together(problems)
    return asked.values


def unfinished(journals: Mapping[NodeName, Sequence[Copy]]) -> list[ShardctlError]:
    """List the unfinished moves of these nodes, as their journals know them."""
    entries = ledger.entries(copy for copies in journals.values() for copy in copies)
    return [
        ledger.in_the_way(entry, ": a repack would run through to its copy, and delay the cutover")
        for entry in entries
        if entry.open and journals.keys() & {entry.move.source, entry.move.target}
    ]


def free_bytes(node: Node, directory: str) -> int:
    """Ask the node's host how much room its data directory has; raises as `files.disk`."""
    return files.disk(host_of(node), directory)[1]


def data_directory(session: Connection, node: Node) -> str | None:
    """Name the data directory, which the server shows to superusers."""
    row = session.execute("SELECT current_setting('data_directory', true)").fetchone()
    reported = row[0] if row else None
    return reported or (str(node.data_directory) if node.data_directory else None)


def _view(
    session: Connection,
    topology: Topology,
    node: Node,
    shards: Sequence[ShardId],
    *,
    superuser_check: bool,
) -> View:
    session.execute("SELECT set_config('lock_timeout', %s, false)", [_LOCK_TIMEOUT])
    row = session.execute(QUERIES["server"]).fetchone()
    if row is None:  # pragma: no cover  # the login is always a role
        raise AssertionError
    standby, superuser, installed, available, standbys, unused = row
    state = None if standby or not cluster.is_present(session) else cluster.read(session)
    if standby:
        raise identity.standby(node)
    if state is None:
        what = f"database {topology.database.name} has no schema shardctl"
        raise node_unfit(node.name, what, hint="run `shardctl init`")
    identity.check(state, topology, node.name)
    _require_owned(session, topology, node, shards)
    if not installed:
        raise extension_missing(node.name, topology.database.name, available=available)
    version = _version(session, node.name)
    may_try = serves_owners(version)
    if not superuser and (superuser_check or not may_try):
        raise Refused(
            "superuser_needed",
            f"node {node.name}: {topology.database.user} is not a superuser, and "
            f"{version} requires one",
            hint="set `database.user` in the topology to a superuser"
            + ("; if this role owns the tables, add --no-superuser-check" if may_try else ""),
        )
    notes = [_long(*found) for found in session.execute(QUERIES["long_transactions"], [_LONG_S])]
    notes += _followers(standbys, unused)
    free, unknown = _room(session, node)
    notes += [f"free disk space could not be checked: {unknown}"] if unknown else []
    return View(
        tables=_tables(session, {topology.schema(shard): shard for shard in shards}),
        leftovers=catalog.repack_leftovers(session),
        version=version,
        major=session.info.server_version // 10_000,
        free_bytes=free,
        notes=tuple(notes),
        moves=ledger.copies(session, topology, node.name, state),
    )


def _require_owned(
    session: Connection, topology: Topology, node: Node, shards: Sequence[ShardId]
) -> None:
    owners = cluster.read_map(session)
    live = catalog.present(session, map(topology.schema, shards))
    missing = [s for s in shards if owners.get(s) != node.name or topology.schema(s) not in live]
    if missing:
        raise Refused(
            "shards_elsewhere",
            f"the topology gives shards {ranges.of(missing)} to node {node.name}, "
            "which does not own them",
            hint="use the newest topology file; `shardctl verify` shows the differences",
        )


def _version(session: Connection, node: NodeName) -> str:
    """Ask which version the extension is, its SQL and its library."""
    try:
        row = session.execute(QUERIES["versions"]).fetchone()
    except psycopg.Error as error:
        raise extension_broken(node, reason_of(error)) from error
    library, written = row or ("", "")
    if library != written:
        raise extension_broken(node, f"its library is {library}, its SQL {written}")
    return str(library)


def _tables(session: Connection, schemas: Mapping[str, ShardId]) -> tuple[Table, ...]:
    given = {"schemas": list(schemas), "command": COMMAND, "mark": MARK}
    return tuple(
        Table(schemas[schema], schema, *rest)
        for schema, *rest in session.execute(QUERIES["tables"], given)
    )


def _room(session: Connection, node: Node) -> tuple[int | None, str | None]:
    """Ask for the room of the data directory; None with the reason where it is unknown."""
    directory = data_directory(session, node)
    if directory is None:
        return None, "data_directory is not in the topology"
    try:
        return free_bytes(node, directory), None
    except ShardctlError as error:
        return None, error.message


def _long(who: str, seconds: float) -> str:
    return f"{who} has had a transaction open for {seconds:.0f} s: every table waits for it to end"


def _followers(standbys: int, unused: int) -> list[str]:
    """Name the clients that the WAL is kept for: a repack rewrites all that it touches."""
    reported = (
        [f"the rewritten tables are also sent to standbys of this node: {standbys}"]
        if standbys
        else []
    )
    if unused:
        reported.append(f"replication slots without a client retain all this WAL: {unused}")
    return reported


def find() -> dict[str, str]:
    """Find the programs that this machine has, by the versions that they print.

    Looked for in `$SHARDCTL_PG_BIN`, beside PostgreSQL's servers, and in PATH; a version's
    first one counts.
    """
    found: dict[str, str] = {}
    for path in _candidates():
        try:
            said = Local().run([path, "--version"], timeout=_ANSWER_S).stdout.strip()
        except CommandFailed:
            continue  # one that does not run is none
        found.setdefault(said, path)
    return found


def _candidates() -> Iterator[str]:
    directories = [os.environ.get(binaries.VARIABLE)]
    directories += [str(one.directory) for one in binaries.installed()]
    for directory in (*filter(None, directories), None):
        path = shutil.which(NAME, path=directory)
        if path is not None:
            yield path


def conninfo(node: Node, database: Database, *, major: int) -> str:
    """Write libpq's connection string for a node, as shardctl's own sessions have it.

    Other runs of pg_repack know by its application_name that they need not wait for it.
    """
    settings = dict(_SETTINGS)
    if major >= _TRANSACTION_TIMEOUT_SINCE:
        settings["transaction_timeout"] = "0"
    return libpq.conninfo(
        node, database.options, user=database.user, dbname=database.name, application_name=NAME,
        options=connection.options(database, settings),
    )  # fmt: skip


def serves_owners(version: str) -> bool:
    """Return whether this version lets ordinary roles repack their own tables."""
    return _numbers(version) >= _SERVES_OWNERS_SINCE


def arguments(program: str, version: str, login: str, table: Table, options: Options) -> list[str]:
    """Compose the argument list of a run; `login` is a connection string."""
    # Older ones write `dbname=` and the value, as it is, into a connection string.
    whole = _numbers(version) >= _TAKES_CONNINFO_SINCE
    name = sql.Identifier(table.schema, table.name).as_string()
    argv = [program, "--no-password"]
    argv += [f"--dbname={login if whole else login.removeprefix('dbname=')}", f"--table={name}"]
    argv += [f"--wait-timeout={options.wait_timeout_s}"]
    argv += [f"--order-by={table.order_by}"] if table.order_by is not None else []
    argv += [] if options.terminate else ["--no-kill-backend"]
    return argv + ([] if options.superuser_check else ["--no-superuser-check"])


def start(argv: list[str]) -> subprocess.Popen[str]:
    """Start it; what it says comes on its standard output, and SIGINT lets it clean up and end.

    Its exit code shows little: it is 0 even where it gave up a table.
    """
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env=os.environ | {"LC_ALL": "C"},
        start_new_session=True,  # Ctrl-C at the terminal reaches shardctl alone
    )


def _numbers(version: str) -> tuple[int, ...]:
    """Read the numbers of a version.

    >>> _numbers("pg_repack 1.4.8"), _numbers("pg_repack 1.5dev")
    ((1, 4, 8), (1, 5))
    """
    return tuple(map(int, re.findall(r"\d+", version)))
