"""The shortest program for each sub-step of a streamed move: the reference of bench `pause`.

`python -m tests.bench.stream_floor TOPOLOGY TARGET SHARD...` moves shards as `stream_script` does
and leaves out the same. Unlike that, it sends what can go together as one message, and does
what a move cannot do without: the target puts a mark of its own on its disk, the source commits
a decision before the target serves, and the target gives the rights on its copies. It prints how
long each took, as JSON.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.moves.context import Timeline
from shardctl.pgbouncer.console import Console, pause_command, resume_command
from shardctl.topology import aliases as names
from tests.bench import script, stream_script

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardctl.postgres.connection import Connection

_ARRIVED = sql.SQL("INSERT INTO public.quick_script VALUES (2)")
_DECIDE = sql.SQL("""\
INSERT INTO public.quick_script VALUES (3)
RETURNING (SELECT coalesce(jsonb_object_agg(schemaname || '.' || sequencename, last_value), '{{}}')
           FROM pg_sequences WHERE schemaname = ANY ({}) AND last_value IS NOT NULL)
""")
_GRANT = sql.SQL("GRANT USAGE ON SCHEMA {} TO pg_monitor")


def aliases(move: script.Move) -> list[str]:
    """List the aliases whose clients wait in a move."""
    return [names.of_node(move.topology.database.name, move.source.name), *move.moved]


def pause(consoles: Sequence[Console], paused: Sequence[str]) -> None:
    """Pause each alias over a console of its own, at the same time."""
    for console, alias in zip(consoles, paused, strict=True):
        console.send(pause_command(alias))
    for console in consoles:
        console.finish()


def route(console: Console, paused: Sequence[str], put_file: Callable[[], object]) -> None:
    """Put the file into its place; reload and resume in one packet."""
    put_file()
    console.execute_all(["RELOAD", *map(resume_command, paused)], seconds=60)


def _carry_out(move: script.Move, opened: script.Opened) -> Timeline:
    source, target = opened.session(move.source), opened.session(move.target)
    tables = stream_script.follow(move, source, target)
    consoles = [opened.console() for _ in aliases(move)]
    put_file = opened.stage(script.value(source, script.NEXT_VERSION))
    script.wait(lambda: script.value(source, stream_script.NEAR.format(script.LAG)))
    timeline = _cut_over(move, consoles, source, target, tables=tables, put_file=put_file)
    target.execute("DROP SUBSCRIPTION quick_script")
    return timeline


def _cut_over(
    move: script.Move,
    consoles: Sequence[Console],
    source: Connection,
    target: Connection,
    *,
    tables: Sequence[sql.Identifier],
    put_file: Callable[[], object],
) -> Timeline:
    """Let the target serve these schemas; give the milliseconds of each sub-step."""
    timeline, paused = Timeline(), aliases(move)
    retired = {schema: script.RETIRED.format(schema) for schema in move.moved}
    live = {new: old for old, new in retired.items()}
    fence = stream_script.FENCE.format(
        tables=sql.SQL(", ").join(tables), renames=script.renames(retired)
    )
    decide = _DECIDE.format(sql.Literal(list(live)))
    with timeline.span("pause"):
        pause(consoles, paused)
    with timeline.span("fence"):
        source.execute(fence)
    with timeline.span("arrive"):
        script.wait(lambda: script.value(target, stream_script.SEEN))
        target.execute(_ARRIVED)
    with timeline.span("look"):
        consoles[0].databases()
    with timeline.span("decide"):
        found = script.value(source, decide)
    with timeline.span("claim"):
        claim = [_GRANT.format(sql.Identifier(schema)) for schema in move.moved]
        for name, last in found.items():
            schema, sequence = name.split(".")
            to = sql.Identifier(live[schema], sequence).as_string()
            claim.append(stream_script.SETVAL.format(to, last + stream_script.MARGIN))
        target.execute(sql.SQL("; ").join(claim))
    with timeline.span("route"):
        route(consoles[0], paused, put_file)
    return timeline


if __name__ == "__main__":
    script.main(sys.argv[1:], _carry_out)
