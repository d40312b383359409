"""What a good DBA's quick script does to move shards: the reference of `move` and `stream-move`.

`python -m tests.bench.script METHOD TOPOLOGY TARGET SHARD...` clones the shards' node, or copies
the shards by a subscription, and cuts over as soon as the target is near. It prints, as JSON, how
long clients waited for that, and for what.

It leaves out whatever makes a move safe. Nothing ends a pause or lifts the fence when the script
dies, there is no deadline, and no journal by which the move could go on or be undone. No row is
compared. The map in the databases follows after the pause, and the topology file keeps what it
says.

For a clone, the script does not wait for writers behind the fence or keep clients out of it, and
ids go on from its own counters. The copies of a stream accept writes all the time; there is no look
at new tables behind the fence, standbys or the structure; no lock gives up, no position is kept.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psycopg import sql
from psycopg.conninfo import make_conninfo

from shardctl.hosts import accounts, files
from shardctl.hosts.local import Local
from shardctl.moves.context import Timeline
from shardctl.pgbouncer import render
from shardctl.pgbouncer.console import Console, pause_command, resume_command
from shardctl.postgres import binaries, connection
from shardctl.postgres.configuration import OVERRIDES
from shardctl.postgres.connection import connect
from shardctl.sandbox.local import LocalServer
from shardctl.topology import loader
from shardctl.topology.model import NodeName, ShardId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, Topology

NAME = "quick_script"
MARGIN = 32
_RETIRED = "{}__retired_by_script"
_POLL_S = 0.001
_LAG = 1 << 20
"""Bytes that the target may be behind when clients are paused."""
_PATIENCE_S = 60.0

_NEAR = {
    "clone": f"""\
SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), replay_lsn) < {_LAG}
FROM pg_stat_replication WHERE application_name = '{NAME}' AND state = 'streaming'
""",
    "stream": f"""\
SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), confirmed_flush_lsn) < {_LAG}
FROM pg_replication_slots WHERE slot_name = '{NAME}'
""",
}
_NEXT_VERSION = "SELECT map_version + 1 FROM shardctl.cluster"
_OWN = "UPDATE shardctl.cluster SET node = %s, identity = gen_random_uuid()"
_VERSION = "UPDATE shardctl.cluster SET map_version = %s"
_MAP = "UPDATE shardctl.map SET node = %s WHERE shard = ANY (%s)"

MARKS = "CREATE TABLE public.quick_script (mark integer PRIMARY KEY)"
_PUBLISH = sql.SQL("CREATE PUBLICATION quick_script FOR TABLE {}")
_SUBSCRIBE = sql.SQL("CREATE SUBSCRIPTION quick_script CONNECTION {} PUBLICATION quick_script")
_COPIED = "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel"
_TABLES = "SELECT schemaname, tablename FROM pg_tables WHERE schemaname = ANY (%s) ORDER BY 1, 2"
_FENCE = sql.SQL("""\
BEGIN;
LOCK TABLE {tables} IN SHARE ROW EXCLUSIVE MODE;
{renames};
INSERT INTO public.quick_script VALUES (1);
COMMIT
""")
SEEN = "SELECT true FROM public.quick_script"
_SEQUENCES = """\
SELECT schemaname::text, sequencename::text, last_value FROM pg_sequences
WHERE schemaname = ANY (%s) AND last_value IS NOT NULL
"""
SETVAL = sql.SQL("SELECT setval({}::regclass, {})")


@dataclass(frozen=True, slots=True)
class Move:
    """Which shards go from where to where."""

    method: str
    topology: Topology
    source: Node
    target: Node
    shards: tuple[ShardId, ...]

    @property
    def moved(self) -> list[str]:
        """List the schemas that go."""
        return [self.topology.schema(shard) for shard in self.shards]

    @property
    def retired(self) -> dict[str, str]:
        """Give the names that these have on the source afterwards."""
        return {schema: _RETIRED.format(schema) for schema in self.moved}

    @property
    def live(self) -> dict[str, str]:
        """Give the schemas by those names."""
        return {new: old for old, new in self.retired.items()}

    @property
    def staying(self) -> dict[str, str]:
        """Give the names that schemas which the source keeps have on a clone."""
        kept = (self.topology.schema(s) for s in self.source.shards if s not in self.shards)
        return {schema: _RETIRED.format(schema) for schema in kept}

    @classmethod
    def of(cls, arguments: Sequence[str]) -> Move:
        """Read the arguments of a program: METHOD TOPOLOGY TARGET SHARD... ."""
        method, path, target, *numbers = arguments
        topology = loader.load(Path(path))
        shards = tuple(ShardId(int(number)) for number in numbers)
        source = topology.nodes[topology.owners()[shards[0]]]
        return cls(method, topology, source, topology.nodes[NodeName(target)], shards)

    def after(self) -> Topology:
        """Give the topology in which the target owns these shards."""
        left = tuple(shard for shard in self.source.shards if shard not in self.shards)
        owned = tuple(sorted((*self.target.shards, *self.shards)))
        changed = {
            self.source.name: replace(self.source, shards=left),
            self.target.name: replace(self.target, shards=owned),
        }
        return replace(self.topology, nodes={**self.topology.nodes, **changed})


class Opened:
    """The sessions of a program, and the file that it puts in place, until it has ended."""

    def __init__(self, move: Move, stack: contextlib.ExitStack) -> None:
        self.move, self._stack = move, stack
        self._database = move.topology.database
        (self._pooler,) = move.topology.poolers.values()

    def session(self, node: Node) -> Connection:
        """Log in to a node, in autocommit."""
        session = connect(node, self._database, purpose=NAME, autocommit=True)
        return self._stack.enter_context(contextlib.closing(session))

    def console(self) -> Console:
        """Log in to the pooler's console."""
        return self._stack.enter_context(Console(self._pooler, self._database, purpose=NAME))

    def near(self, source: Connection) -> Callable[[], object]:
        """Wait until the target is near; give what puts the pooler's file into its place then."""
        staged = self._pooler.databases_file.with_name("staged.ini")
        text = render.databases(self.move.after(), self._pooler, value(source, _NEXT_VERSION))
        files.write(Local(), staged, text, like=self._pooler.databases_file)
        wait(lambda: value(source, _NEAR[self.move.method]))
        return lambda: staged.replace(self._pooler.databases_file)


def main(programs: Mapping[str, Callable[[Opened], Timeline]]) -> None:
    """Carry a program out, and print for what clients waited, in milliseconds, as JSON."""
    move = Move.of(sys.argv[1:])
    with contextlib.ExitStack() as stack:
        spans = programs[move.method](Opened(move, stack)).spans
    found = {"pause_ms": sum(ms for _, ms in spans), "timeline": spans}
    print(json.dumps(found))  # noqa: T201  # the result


@contextlib.contextmanager
def _cut_over(opened: Opened, source: Connection) -> Iterator[Timeline]:
    """Pause clients while the target is made ready, then let it serve them.

    All sessions are open, and all files written, before clients are paused.
    """
    console, schemas, timeline = opened.console(), opened.move.moved, Timeline()
    put_file = opened.near(source)
    with timeline.span("pause"):
        for schema in schemas:
            console.execute(pause_command(schema))
    yield timeline
    with timeline.span("reload"):
        put_file()
        console.reload()
    with timeline.span("resume"):
        for schema in schemas:
            console.execute(resume_command(schema))


def _by_clone(opened: Opened) -> Timeline:
    move = opened.move
    nodes = {node.name: opened.session(node) for node in move.topology.owning()}
    source = nodes[move.source.name]
    clone(move)
    nodes[move.target.name] = target = opened.session(move.target)
    fence, names_back = renames(move.retired), renames(move.live)
    with _cut_over(opened, source) as timeline:
        with timeline.span("fence"):
            source.execute(fence)
            lsn = flushed(source)
        with timeline.span("replay"):
            replayed(target, lsn)
        with timeline.span("promote"):
            promote(target)
        with timeline.span("names back"):
            target.execute(names_back)
    with target.transaction():
        target.execute(renames(move.staying))
        target.execute(_OWN, [move.target.name])
    _write_map(move, nodes)
    return timeline


def _by_stream(opened: Opened) -> Timeline:
    move = opened.move
    nodes = {node.name: opened.session(node) for node in move.topology.owning()}
    source, target = nodes[move.source.name], nodes[move.target.name]
    fence, live = follow(move, source, target), move.live
    with _cut_over(opened, source) as timeline:
        with timeline.span("fence"):
            source.execute(fence)
        with timeline.span("marker"):
            wait(lambda: value(target, SEEN))
        with timeline.span("sequences"):
            found = source.execute(_SEQUENCES, [list(live)]).fetchall()
            values = [
                SETVAL.format(sql.Identifier(live[schema], name).as_string(), last + MARGIN)
                for schema, name, last in found
            ]
            target.execute(sql.SQL("; ").join(values))
    _write_map(move, nodes)
    target.execute("DROP SUBSCRIPTION quick_script")
    return timeline


def _write_map(move: Move, nodes: Mapping[NodeName, Connection]) -> None:
    version = value(nodes[move.source.name], _NEXT_VERSION)
    for each in nodes.values():
        with each.transaction():
            each.execute(_VERSION, [version])
            each.execute(_MAP, [move.target.name, list(move.shards)])


def clone(move: Move) -> None:
    """Copy the source, and start a standby with the settings that a move's clone has."""
    source, target, directory = move.source, move.target, move.target.data_directory
    if directory is None:
        raise ValueError(f"node {target.name} has no data_directory")
    account = accounts.server_account(target.os_user)
    programs = binaries.find(target.bin_directory, account=account)
    directory.mkdir(mode=0o700)
    if account is not None:
        shutil.chown(directory, account)
    user = move.topology.database.replication_user
    way = make_conninfo(host=source.host, port=source.port, user=user, application_name=NAME)
    copying = [programs.program("pg_basebackup"), "-D", str(directory), "-d", way]
    copying += ["-R", "-X", "stream", "-c", "fast", "--no-manifest", "--no-password"]
    subprocess.run(copying, check=True, user=account, cwd="/", stdin=subprocess.DEVNULL)
    standby = replace(target, settings={**OVERRIDES, **target.settings})
    LocalServer(standby, directory, programs, account).start()


def follow(move: Move, source: Connection, target: Connection) -> sql.Composed:
    """Copy structure and rows, and let the target follow; give the fence of the moved tables."""
    database, major = move.topology.database, source.info.server_version // 10_000
    given = {"user": database.user, "dbname": database.name}
    given |= {k: v for k, v in database.options.items() if k == "passfile"}
    ways = [
        make_conninfo(host=one.host, port=one.port, **given) for one in (move.source, move.target)
    ]
    programs = binaries.find_clients(major)
    dump = [programs.program("pg_dump"), "--schema-only", "-d", ways[0]]
    dumped = subprocess.run(
        [*dump, *(f"--schema={schema}" for schema in move.moved)], check=True, capture_output=True
    )
    restore = [programs.program("psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", ways[1]]
    subprocess.run(restore, check=True, input=dumped.stdout, stdout=subprocess.DEVNULL)
    found = source.execute(_TABLES, [move.moved]).fetchall()
    tables = [sql.Identifier(*table) for table in found]
    for one in (source, target):
        one.execute(MARKS)
    published = [*tables, sql.Identifier("public", "quick_script")]
    source.execute(_PUBLISH.format(sql.SQL(", ").join(published)))
    target.execute(_SUBSCRIBE.format(sql.Literal(ways[0])))
    wait(lambda: value(target, _COPIED))
    return _FENCE.format(tables=sql.SQL(", ").join(tables), renames=renames(move.retired))


def flushed(source: Connection) -> Any:
    """Give the position up to which all is on the disk."""
    return value(source, "SELECT pg_current_wal_flush_lsn()::text")


def replayed(standby: Connection, lsn: str) -> None:
    """Wait until a standby has replayed all up to a position."""
    wait(lambda: value(standby, f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'::pg_lsn"))


def promote(standby: Connection) -> None:
    """Promote a standby, and wait until it is a primary."""
    standby.execute("SELECT pg_promote(wait => false)")
    wait(lambda: value(standby, "SELECT NOT pg_is_in_recovery()"))


def renames(names: Mapping[str, str]) -> sql.Composed:
    """Compose one message, which the server carries out as one transaction."""
    rename = sql.SQL("ALTER SCHEMA {} RENAME TO {}")
    return sql.SQL("; ").join(rename.format(*map(sql.Identifier, pair)) for pair in names.items())


def value(session: Connection, query: str | sql.Composed) -> Any:
    """Give the first column of the first row; None where there is none.

    A standby is asked again where replay cancels the question. With parameters, a question is
    several messages, and replay ends a session that is between two of them.
    """
    asked = query.encode() if isinstance(query, str) else query
    row = connection.ask_again(lambda: session.execute(asked).fetchone())
    return row[0] if row else None


def wait(is_so: Callable[[], Any]) -> None:
    """Ask every millisecond until it is so; raises TimeoutError."""
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so within {_PATIENCE_S:g} s")
        time.sleep(_POLL_S)


if __name__ == "__main__":
    main({"clone": _by_clone, "stream": _by_stream})
