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
from shardctl.postgres.control import Server
from shardctl.postgres.overrides import OVERRIDES
from shardctl.topology import loader
from shardctl.topology.model import NodeName, ShardId

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, Topology

_NAME = "quick script"
_RETIRED = "{}__retired_by_script"
_POLL_S = 0.001
_LAG = 1 << 20
"""Bytes that the standby may be behind when clients are paused."""
_PATIENCE_S = 60.0

_NEAR = sql.SQL("""\
SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), replay_lsn) < {}
FROM pg_stat_replication WHERE application_name = {} AND state = 'streaming'
""")
_REPLAYED = sql.SQL("SELECT pg_last_wal_replay_lsn() >= {}::pg_lsn")
_PROMOTED = sql.SQL("SELECT NOT pg_is_in_recovery()")
_NEXT_VERSION = sql.SQL("SELECT map_version + 1 FROM shardctl.cluster")
_FLUSHED = sql.SQL("SELECT pg_current_wal_flush_lsn()::text")
_OWN = "UPDATE shardctl.cluster SET node = %s, identity = gen_random_uuid()"
_VERSION = "UPDATE shardctl.cluster SET map_version = %s"
_MAP = "UPDATE shardctl.map SET node = %s WHERE shard = ANY (%s)"


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

    def after(self) -> Topology:
        """Give the topology in which the target owns these shards."""
        left = tuple(shard for shard in self.source.shards if shard not in self.shards)
        changed = {
            self.source.name: replace(self.source, shards=left),
            self.target.name: replace(self.target, shards=self.shards),
        }
        return replace(self.topology, nodes={**self.topology.nodes, **changed})


def main(arguments: Sequence[str]) -> None:
    """Move shards of one node to a target that is no server yet."""
    path, target, *numbers = arguments
    topology = loader.load(Path(path))
    shards = tuple(ShardId(int(number)) for number in numbers)
    source = topology.nodes[topology.owners()[shards[0]]]
    move = Move(topology, source, topology.nodes[NodeName(target)], shards)
    print(json.dumps(_carry_out(move)))  # noqa: T201  # the result


def _carry_out(move: Move) -> dict[str, object]:
    """Do it with all sessions open, and all files written, before clients are paused."""
    database = move.topology.database
    (pooler,) = move.topology.poolers.values()
    with contextlib.ExitStack() as stack:

        def session(node: Node) -> Connection:
            opened = connect(node, database, purpose=_NAME, autocommit=True)
            return stack.enter_context(contextlib.closing(opened))

        nodes = {node.name: session(node) for node in move.topology.owning()}
        source = nodes[move.source.name]
        _clone(move)
        nodes[move.target.name] = target = session(move.target)
        console = stack.enter_context(Console(pooler, database, purpose=_NAME))
        version = _value(source, _NEXT_VERSION)
        staged = pooler.databases_file.with_name("staged.ini")
        text = render.databases(move.after(), pooler, version)
        files.write(Local(), staged, text, like=pooler.databases_file)
        _wait(lambda: _value(source, _NEAR.format(_LAG, _NAME)))
        spans = _cut_over(
            console,
            source,
            target,
            schemas=move.moved,
            put_file=lambda: staged.replace(pooler.databases_file),
        )
        for name, each in nodes.items():
            with each.transaction():
                if name == move.target.name:
                    each.execute(_renames({one: _RETIRED.format(one) for one in move.staying}))
                    each.execute(_OWN, [name])
                each.execute(_VERSION, [version])
                each.execute(_MAP, [move.target.name, list(move.shards)])
    return {"pause_ms": sum(ms for _, ms in spans), "timeline": spans}


def _clone(move: Move) -> None:
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
    way = make_conninfo(host=source.host, port=source.port, user=user, application_name=_NAME)
    copying = [programs.program("pg_basebackup"), "-D", str(directory), "-d", way]
    copying += ["-R", "-X", "stream", "-c", "fast", "--no-manifest", "--no-password"]
    subprocess.run(copying, check=True, user=account, cwd="/", stdin=subprocess.DEVNULL)
    Server(
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
) -> list[tuple[str, float]]:
    """Let the target serve these schemas; give the milliseconds of everything, in its order."""
    timeline = Timeline()
    retired = {schema: _RETIRED.format(schema) for schema in schemas}
    fence = _renames(retired)
    names_back = _renames({new: old for old, new in retired.items()})
    with timeline.span("pause"):
        for schema in schemas:
            console.execute(pause_command(schema))
    with timeline.span("fence"):
        source.execute(fence)
        lsn = _value(source, _FLUSHED)
    with timeline.span("replay"):
        _wait(lambda: _value(target, _REPLAYED.format(lsn)))
    with timeline.span("promote"):
        target.execute("SELECT pg_promote(wait => false)")
        _wait(lambda: _value(target, _PROMOTED))
    with timeline.span("names back"):
        target.execute(names_back)
    with timeline.span("reload"):
        put_file()
        console.reload()
    with timeline.span("resume"):
        for schema in schemas:
            console.execute(resume_command(schema))
    return timeline.spans


def _renames(names: Mapping[str, str]) -> sql.Composed:
    """Compose one message, which the server carries out as one transaction."""
    rename = sql.SQL("ALTER SCHEMA {} RENAME TO {}")
    return sql.SQL("; ").join(rename.format(*map(sql.Identifier, pair)) for pair in names.items())


def _value(session: Connection, query: sql.SQL | sql.Composed) -> Any:
    """Give the first column of the first row; None where there is none.

    A standby is asked again where replay cancels the question. With parameters, a question is
    several messages, and replay ends a session that is between two of them.
    """
    row = replay.again(lambda: session.execute(query).fetchone())
    return row[0] if row else None


def _wait(is_so: Callable[[], Any]) -> None:
    """Ask every millisecond until it is so; raises TimeoutError."""
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so within {_PATIENCE_S:g} s")
        time.sleep(_POLL_S)


if __name__ == "__main__":
    main(sys.argv[1:])
