"""`shardctl rows`: rows that belong to another shard than the one they are in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli.command import command_app
from shardctl.cli.context import load_topology, note_changes
from shardctl.cli.options import (
    DryRunOption,
    Listing,
    ListingOption,
    LockWaitOption,
    Report,
    ReportOption,
    YesOption,
)
from shardctl.cli.output import (
    confirm,
    plural,
    print_at_end,
    print_csv,
    print_json,
    print_table,
    print_tsv,
    say,
)
from shardctl.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from shardctl.maintenance.misplaced import Misplaced
    from shardctl.maintenance.row_move import Plan
    from shardctl.topology.model import ShardId, Topology

app = command_app(help="Find and move rows that are in a wrong shard.", no_args_is_help=True)

_MISPLACED = ("table", "shard", "node", "belongs_to", "by", "value", "primary_key")

ShardsArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[SHARDS]", help="Shards to search, for example 2-3,17; all by default."
    ),
]
TableOption = Annotated[
    list[str] | None,
    typer.Option("--table", metavar="NAME", help="Search only this table; can be repeated."),
]


@app.command()
def misplaced(
    ctx: typer.Context,
    shards: ShardsArgument = None,
    *,
    table: TableOption = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", min=1, metavar="N", help="Rows to list per table, shard and right shard."
        ),
    ] = 20,
    output: ListingOption = Listing.table,
) -> None:
    """List rows whose key belongs to another shard; exit 1 if there are any.

    A migration's `-- shardctl: key TABLE.COLUMN`, or `database.keys`, names the key's column. In
    other tables, the shard in the id counts. Reads every row.
    """
    from shardctl.errors import Problems
    from shardctl.maintenance import misplaced as searching

    topology = load_topology(ctx)
    report = searching.search(topology, _shards(topology, shards), table or (), limit=limit)
    if report.problems and not report.found:
        raise Problems(list(report.problems))
    if output is Listing.json:
        print_json(
            {
                "format": 1,
                "cluster": topology.cluster,
                "misplaced": [one.as_json() for one in report.found],
                "problems": [one.error_json() for one in report.problems],
            }
        )
    elif output is Listing.tsv:
        print_tsv(_lines(report.found))
    elif output is Listing.csv:
        print_csv((_MISPLACED, *_lines(report.found)))
    elif report.found:
        header = [word.replace("_", " ") for word in _MISPLACED]
        print_table(header, [[*map(one_line, cells)] for cells in _lines(report.found)])
    else:
        print("no row is in a wrong shard")
    rows = sum(one.rows for one in report.found)
    listed = sum(len(one.examples) for one in report.found)
    if listed < rows:
        say(f"{listed:,} of {plural(rows, 'row')} listed; use --limit to list more")
    if report.problems:
        raise Problems(list(report.problems))
    if rows:
        raise typer.Exit(1)


@app.command()
def move(
    ctx: typer.Context,
    shards: ShardsArgument = None,
    *,
    table: TableOption = None,
    output: ReportOption = Report.table,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    lock_wait: LockWaitOption = None,
) -> None:
    """Move misplaced rows to the shards that they belong to.

    It copies rows with all their values, ids too, compares the copies, and then deletes the
    originals. A row stays if its shard has another row with the same key, or while another session
    uses it. If it is interrupted or killed, run it again: it moves the rest.
    """
    from shardctl.cli.progress import bars
    from shardctl.maintenance import row_move
    from shardctl.maintenance.row_copy import COMMAND
    from shardctl.state import lock

    topology = load_topology(ctx, lock_wait=lock_wait)
    plan = row_move.plan(topology, _shards(topology, shards), table or ())
    lock.require_all_free(topology, plan.nodes, command=COMMAND)
    _show(plan, output)
    note_changes(ctx, plan.pairs)
    if dry_run or not plan.pairs:
        return
    confirm(f"Move {plural(plan.rows, 'row')}?", yes=yes)
    with bars() as progress:
        moved = row_move.carry_out(plan, progress)
    say(f"done: {plural(moved, 'row')} moved")


def _show(plan: Plan, output: Report) -> None:
    """Print the plan; an empty one as a sentence."""
    if output is Report.json:
        cluster = plan.topology.cluster
        print_at_end({"format": 1, "cluster": cluster, "moves": plan.as_json()})
        return
    if not plan.pairs:
        print("nothing to do: no row is in a wrong shard")
        return
    print_table(
        ("table", "from shard", "on node", "to shard", "on node", "rows"),
        [
            (
                pair.table.name,
                str(pair.table.shard),
                pair.table.node,
                str(pair.belongs_to),
                pair.node,
                f"{pair.rows:,}",
            )
            for pair in plan.pairs
        ],
    )
    if any(not pair.table.by_id for pair in plan.pairs):
        say(
            "note: rows keep their ids, which contain the shard that made them: "
            "`shardctl verify --deep` still reports them as other_shard"
        )


def _lines(found: Collection[Misplaced]) -> Iterator[tuple[str, ...]]:
    for one in found:
        table = one.table
        for primary_key, value in one.examples:
            yield (
                table.name,
                str(table.shard),
                table.node,
                str(one.belongs_to),
                table.column,
                value,
                primary_key or "",
            )


def _shards(topology: Topology, text: str | None) -> Collection[ShardId]:
    from shardctl.topology import routes

    return topology.owners() if text is None else routes.listed(topology, text)
