"""`shardctl rows`: rows that belong to another shard than the one they are in."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli.command import App
from shardctl.cli.context import load_topology
from shardctl.cli.options import Listing, ListingOption
from shardctl.cli.output import emit, plural, say
from shardctl.cli.progress import bars
from shardctl.errors import Problems, UsageError
from shardctl.printable import one_line, printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from shardctl.maintenance.misplaced import Misplaced
    from shardctl.maintenance.misplaced import Report as Found
    from shardctl.topology.model import Topology

app = App()

_MISPLACED = ("table", "shard", "node", "belongs_to", "by", "value", "primary_key")

ShardsArgument = Annotated[
    str | None, typer.Argument(help="Shards to search, for example 2-3,17; all by default.")
]
TableOption = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Search only this table; can be repeated.")
]


@app.callback()
def rows() -> None:
    """Find rows that are in a wrong shard."""


@app.command()
def misplaced(
    ctx: typer.Context,
    shards: ShardsArgument = None,
    *,
    table: TableOption = None,
    limit: Annotated[
        int, typer.Option(min=1, help="Rows to list per table, shard and right shard.")
    ] = 20,
    statements: Annotated[
        bool,
        typer.Option(
            "--sql", help="Print what moves the listed rows, as a script for psql or in the JSON."
        ),
    ] = False,
    output: ListingOption = Listing.table,
) -> None:
    """List rows whose key belongs to another shard; exit 1 if there are any.

    A migration's `-- shardctl: key TABLE.COLUMN`, or `database.keys`, names the key's column. In
    other tables, the shard in the id counts. Reads every row.
    """
    from shardctl.maintenance import misplaced as searching
    from shardctl.topology import routes

    topology = load_topology(ctx)
    if statements and output not in (Listing.table, Listing.json):
        raise UsageError(f"--sql has no format {output}", hint="leave out -o, or give -o json")
    chosen = routes.listed(topology, shards)
    with bars() as progress:
        report = searching.search(
            topology, chosen, table or (), limit=limit, statements=statements, progress=progress
        )
    if report.problems and not report.found:
        raise Problems(list(report.problems))
    _show(topology, report, output, statements=statements)
    for absent in report.absent:
        say(f"note: no shard has table {absent}, whose key is named; name that of its new name")
    total = sum(one.rows for one in report.found)
    listed = sum(len(one.examples) for one in report.found)
    if listed < total:
        say(f"{listed:,} of {plural(total, 'row')} listed; use --limit to list more")
    if report.problems:
        raise Problems(list(report.problems))
    if total:
        raise typer.Exit(1)


def _show(topology: Topology, report: Found, output: Listing, *, statements: bool) -> None:
    if report.found and statements and output is Listing.table:
        for line in _script(topology, report.found):
            # On a screen no value may be more than text; a file has the values as they are.
            print(printable(line) if sys.stdout.isatty() else line)
        return
    rows = [*_lines(report.found)]
    if output is Listing.table:
        rows = [(*map(one_line, cells),) for cells in rows]
    found = {
        "cluster": topology.cluster,
        "misplaced": [one.as_json() for one in report.found],
        "problems": [one.error_json() for one in report.problems],
    }
    emit(output, _MISPLACED, rows, found, nothing="no row is in a wrong shard")


def _script(topology: Topology, found: Sequence[Misplaced]) -> Iterator[str]:
    """Write what psql runs: for each shard's table and right shard, one node after the other."""
    from shardctl.postgres.connection import conninfo

    owners = topology.owners()
    # psql logs in before it reads a file.
    first = conninfo(topology.nodes[owners[found[0].belongs_to]], topology.database)
    yield f"-- Read every line, then run it: psql -X -q -f FILE {one_line(shlex.quote(first))}"
    yield "\\set ON_ERROR_STOP on"
    for one in found:
        table, target = one.table, owners[one.belongs_to]
        what = f"{len(one.examples):,} of {plural(one.rows, 'row')} of table {table.name}"
        where = f"shard {table.shard} on {table.node}, to shard {one.belongs_to} on {target}"
        yield f"\n-- {one_line(what)}: {where}"
        if any(example.insert is None for example in one.examples):
            yield f"-- by hand: {one_line('; '.join(table.by_hand)) or 'it has no primary key'}"
            continue
        for node, statements in (
            (target, [example.insert for example in one.examples]),
            (table.node, [example.delete for example in one.examples]),
        ):
            given = conninfo(topology.nodes[node], topology.database)
            quoted = given.replace("\\", "\\\\").replace("'", "''")
            yield f"\\connect -reuse-previous=off '{quoted}'"
            yield "BEGIN;"
            yield from (f"{statement};" for statement in statements)
            yield "COMMIT;"


def _lines(found: Collection[Misplaced]) -> Iterator[tuple[str, ...]]:
    for one in found:
        table = one.table
        for primary_key, value, *_ in one.examples:
            yield (
                table.name,
                str(table.shard),
                table.node,
                str(one.belongs_to),
                table.column,
                value,
                primary_key or "",
            )
