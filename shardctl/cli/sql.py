"""`shardctl sql`: a statement in every shard, or on every node."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardctl import inputs
from shardctl.cli import values
from shardctl.cli.command import Changing, command_app
from shardctl.cli.context import load_topology
from shardctl.cli.options import JobsOption, Listing, ListingOption
from shardctl.cli.output import confirm, plural, say
from shardctl.errors import Interrupted, UsageError, together

if TYPE_CHECKING:
    from shardctl.cli.context import Settings
    from shardctl.maintenance.sql import Run
    from shardctl.maintenance.sql_plan import Plan
    from shardctl.topology.model import ShardId, Topology

app = command_app()


@app.command(cls=Changing)
def sql(
    ctx: typer.Context,
    statement: Annotated[
        str | None,
        typer.Argument(metavar="STATEMENT", help="One statement, or several separated by `;`."),
    ] = None,
    *,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="Read statements from a file; - is stdin."),
    ] = None,
    shards: Annotated[
        str | None,
        typer.Option("--shards", metavar="LIST", help="For example 2-3,17; all by default."),
    ] = None,
    nodes: Annotated[
        bool, typer.Option("--nodes", help="Run once on every node instead, in the database.")
    ] = False,
    write: Annotated[bool, typer.Option("--write", help="Allow changes; asks first.")] = False,
    timeout: Annotated[
        values.Duration | None,
        typer.Option(
            "--timeout",
            metavar="DURATION",
            parser=values.duration(least=values.Duration(milliseconds=1)),
            help="Limit each statement, for example 30s.",
        ),
    ] = None,
    jobs: JobsOption = 4,
    output: ListingOption = Listing.table,
) -> None:
    """Run a statement in every shard, or on every node, in parallel, and join the rows.

    It runs in one transaction per shard, with the shard's schema and then public as search_path.
    It may only read, unless --write is given: then shardctl records it, and refuses it during a
    move. The first column of the rows is `shard` (or `node`).
    """
    from shardctl.cli import sql_output
    from shardctl.maintenance import sql_plan
    from shardctl.maintenance.sql import Run
    from shardctl.state import lock

    text = _text(statement, file)
    settings: Settings = ctx.obj
    settings.changes = False  # its output is its result: it ends when its reader does
    settings.lock_wait = settings.lock_wait if write else None
    topology = load_topology(ctx)
    chosen = _shards(topology, shards, nodes=nodes)
    plan = sql_plan.plan(topology, text, shards=chosen, write=write)
    if write:
        lock.require_all_free(topology, plan.places.nodes, command=sql_plan.COMMAND)
    for note in plan.places.notes:
        say(f"note: {note}")
    settings.pending = write and bool(plan.places.chosen)
    if settings.dry_run:
        sql_output.show_plan(plan, output)
        return
    if settings.pending:
        confirm(f"Run this statement in {_places(plan)}?", yes=settings.yes)
    began = time.monotonic()
    run = Run(plan, timeout.ms if timeout else 0, jobs)
    try:
        shown = sql_output.show(run, output)
    except KeyboardInterrupt as interrupt:
        raise _interrupted(run) from interrupt
    rows = f"{plural(shown.rows, 'row')} from" if shown.rows or not write else "done:"
    done = f"{len(run.done):,} of {_places(plan)}" if run.failed else _places(plan)
    say(f"{rows} {done} in {time.monotonic() - began:.1f} s")
    if shown.problems:
        raise together(shown.problems)


def _text(statement: str | None, file: Path | None) -> str:
    if (statement is None) == (file is None):
        raise UsageError("no statement given", hint="give STATEMENT or --file FILE")
    if statement is not None:
        return statement
    try:
        if str(file) == "-":
            content = inputs.whole(sys.stdin.buffer, inputs.MOST_SQL)
        else:
            with Path(str(file)).open("rb") as opened:  # a pipe such as <(COMMAND), too
                content = inputs.whole(opened, inputs.MOST_SQL)
        return content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{file}: {reason}", hint="give a readable SQL file in UTF-8") from error


def _shards(topology: Topology, text: str | None, *, nodes: bool) -> list[ShardId] | None:
    from shardctl.topology import routes

    if text is not None and nodes:
        raise UsageError("--shards and --nodes exclude each other", hint="give one of them")
    if nodes:
        return None
    if text is None:
        return sorted(topology.owners())
    return list(routes.listed(topology, text))


def _places(plan: Plan) -> str:
    count, nodes = len(plan.places.chosen), plural(len(plan.places.nodes), "node")
    return nodes if plan.shards is None else f"{plural(count, 'shard')} on {nodes}"


def _interrupted(run: Run) -> Interrupted:
    from shardctl.maintenance import folding

    if not run.plan.write:
        return Interrupted("interrupted: shardctl cancelled the statement; nothing was changed")
    done = set(run.done)
    left = [place for place in run.plan.places.chosen if place not in done]
    unknown = [one.place for one in run.failed if one.unknown]
    doubt = f"; unknown for {folding.where(unknown)}" if unknown else ""
    return Interrupted(
        f"interrupted: committed in {len(done):,} of {_places(run.plan)}{doubt}",
        hint=f"to run it in the rest: {folding.rest(left)}" if left else "",
    )
