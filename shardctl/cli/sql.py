"""`shardctl sql`: a statement in every shard, or on every node."""

from __future__ import annotations

import time
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from shardctl import inputs
from shardctl.cli.command import App, Changing, Context, load_topology
from shardctl.cli.options import MS, Duration, JobsOption, ListingOption, duration_option
from shardctl.cli.output import (
    confirm,
    emit,
    plural,
    print_csv,
    print_json,
    print_line,
    print_table,
    print_tsv,
    say,
)
from shardctl.cli.progress import bars
from shardctl.errors import Interrupted, Refused, ShardctlError, UsageError, together
from shardctl.maintenance import folding
from shardctl.maintenance.folding import Columns, Folded
from shardctl.maintenance.sql import COMMAND, Answer, Failure, Plan, Run, Warned, planned
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.maintenance.places import Place
    from shardctl.topology.model import ShardId, Topology


app = App()


@app.command(cls=Changing)
def sql(
    ctx: Context,
    statement: Annotated[
        str | None, typer.Argument(help="One statement, or several separated by `;`.")
    ] = None,
    *,
    file: Annotated[
        typer.FileBinaryRead | None,
        typer.Option(metavar="<file>", help="Read statements from a file; - is stdin."),
    ] = None,
    shards: Annotated[
        str | None, typer.Option(metavar="<list>", help="For example 2-3,17; all by default.")
    ] = None,
    nodes: Annotated[
        bool, typer.Option(help="Run once on every node instead, in the database.")
    ] = False,
    write: Annotated[bool, typer.Option(help="Allow changes; asks first.")] = False,
    timeout: Annotated[
        Duration | None, duration_option("Limit each statement, for example 30s.", least=MS)
    ] = None,
    jobs: JobsOption = 4,
    output: ListingOption = "table",
) -> None:
    """Run a statement in every shard, or on every node, in parallel, and join the rows.

    It runs in one transaction per shard, with the shard's schema and then public as search_path.
    It may only read, unless --write is given: then shardctl records it, and refuses it during a
    move. The first column of the rows is `shard` (or `node`).
    """
    from shardctl.state import lock

    text = _text(statement, file)
    settings = ctx.obj
    settings.changes = False  # its output is its result: it ends when its reader does
    settings.lock_wait = settings.lock_wait if write else None
    topology = load_topology(ctx)
    chosen = _shards(topology, shards, nodes=nodes)
    plan = planned(topology, text, shards=chosen, write=write)
    if write:
        lock.require_all_free(topology, plan.places.nodes, command=COMMAND)
    for note in plan.places.notes:
        say(f"note: {note}")
    settings.pending = write and bool(plan.places.chosen)
    if settings.dry_run:
        show_plan(plan, output)
        return
    if settings.pending:
        confirm(f"Run this statement in {_places(plan)}?", yes=settings.yes)
    began = time.monotonic()
    run = Run(plan, timeout.ms if timeout else 0, jobs)
    try:
        count, problems = show(run, output)
    except KeyboardInterrupt as interrupt:
        raise _interrupted(run) from interrupt
    rows = f"{plural(count, 'row')} from" if count or not write else "done:"
    done = f"{len(run.done):,} of {_places(plan)}" if run.failed else _places(plan)
    say(f"{rows} {done} in {time.monotonic() - began:.1f} s")
    if problems:
        raise together(problems)


def _text(statement: str | None, file: typer.FileBinaryRead | None) -> str:
    if (statement is None) == (file is None):
        raise UsageError("no statement given", hint="give STATEMENT or --file FILE")
    if file is None:
        return statement or ""
    try:
        return inputs.whole(file, inputs.MOST_SQL).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--file: {error}", hint="give a readable SQL file in UTF-8") from error


def _shards(topology: Topology, text: str | None, *, nodes: bool) -> list[ShardId] | None:
    from shardctl.topology import routes

    if text is not None and nodes:
        raise UsageError("--shards and --nodes exclude each other", hint="give one of them")
    return None if nodes else list(routes.listed(topology, text))


def _places(plan: Plan) -> str:
    count, nodes = len(plan.places.chosen), plural(len(plan.places.nodes), "node")
    return nodes if plan.shards is None else f"{plural(count, 'shard')} on {nodes}"


def _interrupted(run: Run) -> Interrupted:
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


def show_plan(plan: Plan, output: str) -> None:
    """Print where the statement would run."""
    found = plan.places.by_node().items()
    shards = {node: [p.shard for p in places if p.shard is not None] for node, places in found}
    rows = [
        (node, f"{len(own):,}: {ranges.of(own)}" if own else "") for node, own in shards.items()
    ]
    nodes = [{"node": node, "shards": own} for node, own in shards.items()]
    emit(output, ("node", "shards"), rows, {"write": plan.write, "nodes": nodes})
    for place, error in plan.places.left_out:
        say(f"{folding.where([place])}: {error.message}")


def show(run: Run, output: str) -> tuple[int, list[ShardctlError]]:
    """Run it and print the results, rows as they arrive but for tables.

    Give the number of printed rows, and the errors to end with.
    """
    count, folded = 0, Folded()
    warnings: dict[str, list[Place]] = {}
    first: Columns = ()
    differing: dict[Columns, list[Place]] = {}
    # Rows may appear on the terminal that would show progress, or in a pager there.
    shown = bars() if output == "table" else nullcontext(run.progress)
    # If the reader closes the pipe, the run is ended.
    with shown as run.progress, closing(run.events()) as events:
        for event in events:
            if isinstance(event, Warned):
                warnings.setdefault(event.message, []).append(event.place)
            elif output == "json":
                print_json(folding.as_json(event))
                count += 0 if isinstance(event, Failure) else len(event.rows)
            elif isinstance(event, Failure):
                continue  # the run has it
            elif output == "table" or not event.columns:
                folded.add(event)
            elif first and _titles(event.columns) != _titles(first):
                differing.setdefault(event.columns, []).append(event.place)
            else:
                _print_rows(event, output, header=not first)
                first = event.columns
                count += len(event.rows)
    if output == "table":
        count = _tables(run, folded)
    for (_, command), places in sorted(folded.commands.items(), key=lambda one: one[0]):
        (print_line if output == "table" else say)(f"{command}: {folding.where(places)}")
    for message, places in warnings.items():
        say(f"note: {folding.where(list(dict.fromkeys(places)))}: {message}")
    return count, [*_skipped(first, differing), *folding.errors(run)]


def _skipped(first: Columns, differing: dict[Columns, list[Place]]) -> Iterator[Refused]:
    for columns, places in differing.items():
        yield Refused(
            "columns_differ",
            f"{folding.where(list(dict.fromkeys(places)))}: rows skipped: expected columns "
            f"{_names(first)}, found {_names(columns)}",
            hint="use -o table or -o json, or list the columns in the statement",
        )


def _print_rows(answer: Answer, output: str, *, header: bool) -> None:
    """Print rows as TSV or CSV, which has a header."""
    place = _label(answer.place)
    if output == "tsv":
        print_tsv((place, *row) for row in answer.rows)
        return
    if header:
        label = "node" if answer.place.shard is None else "shard"
        print_csv([(label, *_titles(answer.columns))])
    print_csv((place, *row) for row in answer.rows)


def _tables(run: Run, folded: Folded) -> int:
    """Print a table for each statement and its columns; return how many rows there are."""
    label = "node" if run.plan.shards is None else "shard"
    # Rows of a place that failed later do not count.
    failed = {one.place for one in run.failed}
    count = 0
    for found in folded.tables.values():
        found.sort(key=lambda one: _key(one[0]))
    for (_, columns), found in sorted(
        folded.tables.items(), key=lambda one: (one[0][0], [_key(p) for p, _ in one[1][:1]])
    ):
        kept = [one for one in found if one[0] not in failed]
        count += len(kept)
        rows = [
            (_label(place), *("NULL" if value is None else value for value in row))
            for place, row in kept
        ]
        print_table((label, *_titles(columns)), rows, drops=())
    return count


def _key(place: Place) -> tuple[int, str]:
    return (place.shard or 0, place.node)


def _label(place: Place) -> str:
    return place.node if place.shard is None else str(place.shard)


def _titles(columns: Columns) -> tuple[str, ...]:
    return tuple(column.name for column in columns)


def _names(columns: Columns) -> str:
    return f"({', '.join(_titles(columns))})"
