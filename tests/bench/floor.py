"""The shortest program for each sub-step of a cutover: the reference of bench `pause`.

`python -m tests.bench.floor METHOD TOPOLOGY TARGET SHARD...` moves the shards as `script` does and
leaves out the same. Unlike that, it sends what can go together as one message, and does what a
move cannot do without.

Of a clone that is a position that is on the source's disk, a snapshot for the comparison, a
decision, and other names for the schemas that stay. In a stream the target puts a mark of its own
on its disk, the source commits a decision before the target serves, and the target gives the rights
on its copies. It prints how long each took, as JSON.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.moves.context import Timeline
from shardctl.pgbouncer.console import Console, pause_command, resume_command
from shardctl.topology import names
from tests.bench import script

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.postgres.connection import Connection

_MARK = "INSERT INTO public.quick_script VALUES ({})"
_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT pg_export_snapshot()"
_DECIDE = sql.SQL("""\
INSERT INTO public.quick_script VALUES (3)
RETURNING (SELECT coalesce(jsonb_object_agg(schemaname || '.' || sequencename, last_value), '{{}}')
           FROM pg_sequences WHERE schemaname = ANY ({}) AND last_value IS NOT NULL)
""")
_GRANT = sql.SQL("GRANT USAGE ON SCHEMA {} TO pg_monitor")


@contextlib.contextmanager
def _cut_over(opened: script.Opened, source: Connection) -> Iterator[tuple[Timeline, Console]]:
    """Pause every alias over a console of its own, at the same time; reload and resume at once."""
    move, timeline = opened.move, Timeline()
    node = names.of_node(move.topology.database.name, move.source.name)
    consoles = {alias: opened.console() for alias in (node, *move.moved)}
    put_file = opened.near(source)
    with timeline.span("pause"):
        for alias, console in consoles.items():
            console.send(pause_command(alias))
        for console in consoles.values():
            console.finish()
    yield timeline, consoles[node]
    with timeline.span("route"):
        put_file()
        consoles[node].execute_all(["RELOAD", *map(resume_command, consoles)], seconds=60)


def _of_clone(opened: script.Opened) -> Timeline:
    move = opened.move
    source = opened.session(move.source)
    source.execute(script.MARKS)
    script.clone(move)
    target, holder = opened.session(move.target), opened.session(move.target)
    fence, claim = script.renames(move.retired), script.renames(move.live | move.staying)
    with _cut_over(opened, source) as (timeline, console):
        with timeline.span("fence"):
            source.execute(fence)
        with timeline.span("mark"):
            source.execute(_MARK.format(1).encode())
            lsn = script.flushed(source)
        with timeline.span("replay"):
            script.replayed(target, lsn)
        with timeline.span("snapshot"):
            holder.execute(_SNAPSHOT)
        with timeline.span("look"):
            console.databases()
        with timeline.span("decide"):
            source.execute(_MARK.format(2).encode())
        with timeline.span("promote"):
            script.promote(target)
        with timeline.span("claim"):
            target.execute(claim)
    return timeline


def _of_stream(opened: script.Opened) -> Timeline:
    move = opened.move
    source, target = opened.session(move.source), opened.session(move.target)
    fence, live = script.follow(move, source, target), move.live
    decide = _DECIDE.format(sql.Literal(list(live)))
    with _cut_over(opened, source) as (timeline, console):
        with timeline.span("fence"):
            source.execute(fence)
        with timeline.span("arrive"):
            script.wait(lambda: script.value(target, script.SEEN))
            target.execute(_MARK.format(2).encode())
        with timeline.span("look"):
            console.databases()
        with timeline.span("decide"):
            found = script.value(source, decide)
        with timeline.span("claim"):
            claim = [_GRANT.format(sql.Identifier(schema)) for schema in move.moved]
            for name, last in found.items():
                schema, sequence = name.split(".")
                to = sql.Identifier(live[schema], sequence).as_string()
                claim.append(script.SETVAL.format(to, last + script.MARGIN))
            target.execute(sql.SQL("; ").join(claim))
    target.execute("DROP SUBSCRIPTION quick_script")
    return timeline


if __name__ == "__main__":
    script.main({"clone": _of_clone, "stream": _of_stream})
