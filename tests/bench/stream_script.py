"""What a good DBA's quick script does to move shards by a stream: the reference of `stream-move`.

`python -m tests.bench.stream_script TOPOLOGY TARGET SHARD...` copies the shards by a subscription,
and cuts over when it has caught up. It prints, as JSON, how long clients waited for that, and for
what.

It leaves out whatever makes a move safe. Nothing ends a pause or lifts the fence when the script
dies, there is no deadline, and no journal. The copies accept writes all the time. Nobody looks
who makes tables behind the fence, at standbys, or at the structure; no lock gives up, no position
is kept, no row is compared. The map in the databases follows after the pause, and the topology file
keeps what it says.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from psycopg import sql
from psycopg.conninfo import make_conninfo

from shardctl.moves.context import Timeline
from shardctl.pgbouncer.console import Console, pause_command, resume_command
from shardctl.postgres.logical import clients
from tests.bench import script

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardctl.postgres.connection import Connection

NAME = "quick_script"
MARGIN = 32

_MARKS = sql.SQL("CREATE TABLE public.quick_script (mark integer PRIMARY KEY)")
_PUBLISH = sql.SQL("CREATE PUBLICATION quick_script FOR TABLE {}")
_SUBSCRIBE = sql.SQL("CREATE SUBSCRIPTION quick_script CONNECTION {} PUBLICATION quick_script")
_COPIED = sql.SQL("SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel")
NEAR = sql.SQL("""\
SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), confirmed_flush_lsn) < {}
FROM pg_replication_slots WHERE slot_name = 'quick_script'
""")
_TABLES = "SELECT schemaname, tablename FROM pg_tables WHERE schemaname = ANY (%s) ORDER BY 1, 2"
FENCE = sql.SQL("""\
BEGIN;
LOCK TABLE {tables} IN SHARE ROW EXCLUSIVE MODE;
{renames};
INSERT INTO public.quick_script VALUES (1);
COMMIT
""")
SEEN = sql.SQL("SELECT true FROM public.quick_script")
_SEQUENCES = """\
SELECT schemaname::text, sequencename::text, last_value FROM pg_sequences
WHERE schemaname = ANY (%s) AND last_value IS NOT NULL
"""
SETVAL = sql.SQL("SELECT setval({}::regclass, {})")


def _carry_out(move: script.Move, opened: script.Opened) -> Timeline:
    """Do it with all sessions open, and all files written, before clients are paused."""
    nodes = {node.name: opened.session(node) for node in move.topology.owning()}
    source, target = nodes[move.source.name], nodes[move.target.name]
    tables = follow(move, source, target)
    console = opened.console()
    version = script.value(source, script.NEXT_VERSION)
    put_file = opened.stage(version)
    script.wait(lambda: script.value(source, NEAR.format(script.LAG)))
    timeline = _cut_over(
        console, source, target, schemas=move.moved, tables=tables, put_file=put_file
    )
    for each in nodes.values():
        with each.transaction():
            each.execute(script.VERSION, [version])
            each.execute(script.MAP, [move.target.name, list(move.shards)])
    target.execute("DROP SUBSCRIPTION quick_script")
    return timeline


def follow(move: script.Move, source: Connection, target: Connection) -> list[sql.Identifier]:
    """Copy structure and rows, and let the target follow; give the moved tables."""
    database, major = move.topology.database, source.info.server_version // 10_000
    given = {"user": database.user, "dbname": database.name}
    given |= {k: v for k, v in database.options.items() if k == "passfile"}
    ways = [
        make_conninfo(host=one.host, port=one.port, **given) for one in (move.source, move.target)
    ]
    programs = clients.find(major)
    dump = [programs.program("pg_dump"), "--schema-only", "-d", ways[0]]
    dumped = subprocess.run(
        [*dump, *(f"--schema={schema}" for schema in move.moved)], check=True, capture_output=True
    )
    restore = [programs.program("psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", ways[1]]
    subprocess.run(restore, check=True, input=dumped.stdout, stdout=subprocess.DEVNULL)
    found = source.execute(_TABLES, [move.moved]).fetchall()
    tables = [sql.Identifier(*table) for table in found]
    for one in (source, target):
        one.execute(_MARKS)
    published = [*tables, sql.Identifier("public", "quick_script")]
    source.execute(_PUBLISH.format(sql.SQL(", ").join(published)))
    target.execute(_SUBSCRIBE.format(sql.Literal(ways[0])))
    script.wait(lambda: script.value(target, _COPIED))
    return tables


def _cut_over(
    console: Console,
    source: Connection,
    target: Connection,
    *,
    schemas: Sequence[str],
    tables: Sequence[sql.Identifier],
    put_file: Callable[[], object],
) -> Timeline:
    """Let the target serve these schemas; give the milliseconds of everything, in its order."""
    timeline = Timeline()
    retired = {schema: script.RETIRED.format(schema) for schema in schemas}
    live = {new: old for old, new in retired.items()}
    fence = FENCE.format(tables=sql.SQL(", ").join(tables), renames=script.renames(retired))
    with timeline.span("pause"):
        for schema in schemas:
            console.execute(pause_command(schema))
    with timeline.span("fence"):
        source.execute(fence)
    with timeline.span("marker"):
        script.wait(lambda: script.value(target, SEEN))
    with timeline.span("sequences"):
        found = source.execute(_SEQUENCES, [list(live)]).fetchall()
        values = [
            SETVAL.format(sql.Identifier(live[schema], name).as_string(), last + MARGIN)
            for schema, name, last in found
        ]
        target.execute(sql.SQL("; ").join(values))
    with timeline.span("reload"):
        put_file()
        console.reload()
    with timeline.span("resume"):
        for schema in schemas:
            console.execute(resume_command(schema))
    return timeline


if __name__ == "__main__":
    script.main(sys.argv[1:], _carry_out)
