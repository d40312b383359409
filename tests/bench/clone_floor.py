"""The shortest program for each sub-step of a clone's cutover: the reference of bench `pause`.

`python -m tests.bench.clone_floor TOPOLOGY TARGET SHARD...` moves the shards as `script` does and
leaves out the same. Unlike that, it sends what can go together as one message, and does what a
move cannot do without: a position that is on the source's disk, a snapshot for the comparison, a
decision, and other names for the schemas that stay. It prints how long each took, as JSON.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.moves.context import Timeline
from tests.bench import script
from tests.bench.stream_floor import aliases, pause, route

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardctl.pgbouncer.console import Console
    from shardctl.postgres.connection import Connection

_MARKS = "CREATE TABLE public.quick_script (mark integer PRIMARY KEY)"
_MARK = sql.SQL("INSERT INTO public.quick_script VALUES ({})")
_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT pg_export_snapshot()"


def _carry_out(move: script.Move, opened: script.Opened) -> Timeline:
    source = opened.session(move.source)
    source.execute(_MARKS)
    script.clone(move)
    sessions = (source, opened.session(move.target), opened.session(move.target))
    consoles = [opened.console() for _ in aliases(move)]
    put_file = opened.stage(script.value(source, script.NEXT_VERSION))
    script.wait(lambda: script.value(source, script.NEAR.format(script.LAG, script.NAME)))
    return _cut_over(move, consoles, sessions, put_file=put_file)


def _cut_over(
    move: script.Move,
    consoles: Sequence[Console],
    sessions: tuple[Connection, Connection, Connection],
    *,
    put_file: Callable[[], object],
) -> Timeline:
    """Let the target serve these schemas; give the milliseconds of each sub-step."""
    timeline, (source, target, holder) = Timeline(), sessions
    retired = {schema: script.RETIRED.format(schema) for schema in move.moved}
    fence = script.renames(retired)
    staying = {schema: script.RETIRED.format(schema) for schema in move.staying}
    claim = script.renames({new: old for old, new in retired.items()} | staying)
    with timeline.span("pause"):
        pause(consoles, aliases(move))
    with timeline.span("fence"):
        source.execute(fence)
    with timeline.span("mark"):
        source.execute(_MARK.format(1))
        lsn = script.value(source, script._FLUSHED)
    with timeline.span("replay"):
        script.wait(lambda: script.value(target, script._REPLAYED.format(lsn)))
    with timeline.span("snapshot"):
        holder.execute(_SNAPSHOT)
    with timeline.span("look"):
        consoles[0].databases()
    with timeline.span("decide"):
        source.execute(_MARK.format(2))
    with timeline.span("promote"):
        target.execute("SELECT pg_promote(wait => false)")
        script.wait(lambda: script.value(target, script._PROMOTED))
    with timeline.span("claim"):
        target.execute(claim)
    with timeline.span("route"):
        route(consoles[0], aliases(move), put_file)
    return timeline


if __name__ == "__main__":
    script.main(sys.argv[1:], _carry_out)
