"""What a good DBA's quick script does to move shards by a clone: the reference of bench `move`.

`python -m tests.bench.script TOPOLOGY TARGET SHARD...` clones the shards' node, and cuts over as
soon as the clone is near. It prints, as JSON, how long clients waited for that, and for what.

It leaves out whatever makes a move safe. Nothing ends a pause or lifts the fence when the script
dies, there is no deadline, and no journal by which anybody could go on or undo. Nobody waits for
writers behind the fence, or keeps clients out of the clone. Ids go on from the clone's own
counters, and no row is compared. The map in the databases follows after the pause, and the
topology file keeps what it says.
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
from shardctl.postgres import binaries, replay
from shardctl.postgres.connection import connect
from shardctl.postgres.overrides import OVERRIDES
from shardctl.sandbox.local import LocalServer
from shardctl.topology import loader
from shardctl.topology.model import NodeName, ShardId

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, Topology

NAME = "quick script"
RETIRED = "{}__retired_by_script"
_POLL_S = 0.001
LAG = 1 << 20
"""Bytes that the standby may be behind when clients are paused."""
_PATIENCE_S = 60.0

NEAR = sql.SQL("""\
SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), replay_lsn) < {}
FROM pg_stat_replication WHERE application_name = {} AND state = 'streaming'
""")
_REPLAYED = sql.SQL("SELECT pg_last_wal_replay_lsn() >= {}::pg_lsn")
_PROMOTED = sql.SQL("SELECT NOT pg_is_in_recovery()")
NEXT_VERSION = sql.SQL("SELECT map_version + 1 FROM shardctl.cluster")
_FLUSHED = sql.SQL("SELECT pg_current_wal_flush_lsn()::text")
_OWN = "UPDATE shardctl.cluster SET node = %s, identity = gen_random_uuid()"
VERSION = "UPDATE shardctl.cluster SET map_version = %s"
MAP = "UPDATE shardctl.map SET node = %s WHERE shard = ANY (%s)"


@dataclass(frozen=True, slots=True)
class Move:
    """Which shards go from where to where."""

    topology: Topology
    source: Node
    target: Node
    shards: tuple[ShardId, ...]

    @property
    def moved(self) -> list[str]:
        """List the schemas that go."""
        return [self.topology.schema(shard) for shard in self.shards]

    @property
    def staying(self) -> list[str]:
        """List the schemas that the source keeps."""
        return [self.topology.schema(s) for s in self.source.shards if s not in self.shards]

    @classmethod
    def of(cls, arguments: Sequence[str]) -> Move:
        """Read the arguments of a program: TOPOLOGY TARGET SHARD... ."""
        path, target, *numbers = arguments
        topology = loader.load(Path(path))
        shards = tuple(ShardId(int(number)) for number in numbers)
        source = topology.nodes[topology.owners()[shards[0]]]
        return cls(topology, source, topology.nodes[NodeName(target)], shards)

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
        self._move, self._stack = move, stack
        self._database = move.topology.database
        (self._pooler,) = move.topology.poolers.values()

    def session(self, node: Node) -> Connection:
        """Log in to a node, in autocommit."""
        session = connect(node, self._database, purpose=NAME, autocommit=True)
        return self._stack.enter_context(contextlib.closing(session))

    def console(self) -> Console:
        """Log in to the pooler's console."""
        return self._stack.enter_context(Console(self._pooler, self._database, purpose=NAME))

    def stage(self, version: int) -> Callable[[], object]:
        """Write the pooler's file as it is after the move; give what puts it into its place."""
        staged = self._pooler.databases_file.with_name("staged.ini")
        text = render.databases(self._move.after(), self._pooler, version)
        files.write(Local(), staged, text, like=self._pooler.databases_file)
        return lambda: staged.replace(self._pooler.databases_file)


def main(arguments: Sequence[str], carry_out: Callable[[Move, Opened], Timeline]) -> None:
    """Carry a program out, and print for what clients waited, in milliseconds, as JSON."""
    move = Move.of(arguments)
    with contextlib.ExitStack() as stack:
        spans = carry_out(move, Opened(move, stack)).spans
    found = {"pause_ms": sum(ms for _, ms in spans), "timeline": spans}
    print(json.dumps(found))  # noqa: T201  # the result


def _carry_out(move: Move, opened: Opened) -> Timeline:
    """Do it with all sessions open, and all files written, before clients are paused."""
    nodes = {node.name: opened.session(node) for node in move.topology.owning()}
    source = nodes[move.source.name]
    clone(move)
    nodes[move.target.name] = target = opened.session(move.target)
    console = opened.console()
    version = value(source, NEXT_VERSION)
    put_file = opened.stage(version)
    wait(lambda: value(source, NEAR.format(LAG, NAME)))
    timeline = _cut_over(console, source, target, schemas=move.moved, put_file=put_file)
    for name, each in nodes.items():
        with each.transaction():
            if name == move.target.name:
                each.execute(renames({one: RETIRED.format(one) for one in move.staying}))
                each.execute(_OWN, [name])
            each.execute(VERSION, [version])
            each.execute(MAP, [move.target.name, list(move.shards)])
    return timeline


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
    LocalServer(
        name=target.name,
        host=target.host,
        port=target.port,
        data_directory=directory,
        binaries=programs,
        account=account,
        settings={**OVERRIDES, **target.settings},
    ).start()


def _cut_over(
    console: Console,
    source: Connection,
    target: Connection,
    *,
    schemas: Sequence[str],
    put_file: Callable[[], object],
) -> Timeline:
    """Let the target serve these schemas; give the milliseconds of everything, in its order."""
    timeline = Timeline()
    retired = {schema: RETIRED.format(schema) for schema in schemas}
    fence = renames(retired)
    names_back = renames({new: old for old, new in retired.items()})
    with timeline.span("pause"):
        for schema in schemas:
            console.execute(pause_command(schema))
    with timeline.span("fence"):
        source.execute(fence)
        lsn = value(source, _FLUSHED)
    with timeline.span("replay"):
        wait(lambda: value(target, _REPLAYED.format(lsn)))
    with timeline.span("promote"):
        target.execute("SELECT pg_promote(wait => false)")
        wait(lambda: value(target, _PROMOTED))
    with timeline.span("names back"):
        target.execute(names_back)
    with timeline.span("reload"):
        put_file()
        console.reload()
    with timeline.span("resume"):
        for schema in schemas:
            console.execute(resume_command(schema))
    return timeline


def renames(names: Mapping[str, str]) -> sql.Composed:
    """Compose one message, which the server carries out as one transaction."""
    rename = sql.SQL("ALTER SCHEMA {} RENAME TO {}")
    return sql.SQL("; ").join(rename.format(*map(sql.Identifier, pair)) for pair in names.items())


def value(session: Connection, query: sql.SQL | sql.Composed) -> Any:
    """Give the first column of the first row; None where there is none.

    A standby is asked again where replay cancels the question. With parameters, a question is
    several messages, and replay ends a session that is between two of them.
    """
    row = replay.again(lambda: session.execute(query).fetchone())
    return row[0] if row else None


def wait(is_so: Callable[[], Any]) -> None:
    """Ask every millisecond until it is so; raises TimeoutError."""
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so within {_PATIENCE_S:g} s")
        time.sleep(_POLL_S)


if __name__ == "__main__":
    main(sys.argv[1:], _carry_out)
