"""The commands that repair: `shardctl read-only`, `rows` and `repack`."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardctl.cli import picture
from shardctl.cli.command import App, Changing, Context, load_topology, run_change
from shardctl.cli.options import Duration, ListingOption, duration_option, node_names
from shardctl.cli.output import emit, plural, say
from shardctl.cli.progress import bars
from shardctl.errors import Problems, ShardctlError, UsageError, together
from shardctl.printable import one_line, printable
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from shardctl.access.read_only import Wanted
    from shardctl.maintenance.misplaced import Misplaced
    from shardctl.maintenance.misplaced import Report as Found
    from shardctl.maintenance.repack import Plan, Repack, Table
    from shardctl.topology.model import ShardId, Topology

read_only_app = App()

ShardsArgument = Annotated[str | None, typer.Argument(help="For example 2-3,17; or use --node.")]
NodeOption = Annotated[
    str | None, typer.Option(autocompletion=node_names, help="All shards of this node.")
]
WAIT = Duration(seconds=30)
WaitOption = Annotated[
    Duration, duration_option("How long to wait for sessions that use a table, for example 30s.")
]


@read_only_app.command(cls=Changing)
def on(
    ctx: Context,
    shards: ShardsArgument = None,
    *,
    node: NodeOption = None,
    wait: WaitOption = WAIT,
) -> None:
    """Refuse writes to the tables of shards for all roles, owners and superusers too.

    Writers get SQLSTATE 25006 with the shard's number; reads continue. When the command returns,
    all earlier writes have ended. It refuses neither DDL nor sequences. It lasts until
    `read-only off`, also after a restart of the server or a move of the shard.
    """
    from shardctl.access.read_only import Wanted

    _run(ctx, Wanted.on, shards, node, wait)


@read_only_app.command(cls=Changing)
def off(
    ctx: Context,
    shards: ShardsArgument = None,
    *,
    node: NodeOption = None,
    wait: WaitOption = WAIT,
) -> None:
    """Accept writes to shards again, and restore their schemas.

    The tables accept writes at once; removing the triggers then waits for readers.
    """
    from shardctl.access.read_only import Wanted

    _run(ctx, Wanted.off, shards, node, wait)


def _run(
    ctx: Context,
    wanted: Wanted,
    shards: str | None,
    node: str | None,
    wait: Duration,
) -> None:
    """Plan, show, ask, carry out, report."""
    from shardctl.access import read_only_fleet as fleet
    from shardctl.state import lock

    topology = load_topology(ctx)
    chosen = _shards(topology, shards, node)
    plans = fleet.plan(topology, chosen, wanted, purpose=lock.purpose(wanted.command))
    changed = [one.node for one in plans if one.todo]
    lock.require_all_free(topology, changed, command=wanted.command)
    count = sum(len(one.todo) for one in plans)
    where = f"{plural(count, 'shard')} on {plural(len(changed), 'node')}"
    verb, are = ("Refuse", "already") if wanted == "on" else ("Accept", "not")
    run_change(
        ctx,
        pending=count,
        header=("node", "read-only", "shards", "tables", "unchanged"),
        rows=[
            (
                one.node,
                wanted.value,
                picture.shorten(ranges.of(one.todo)),
                f"{one.tables:,}",
                picture.shorten(ranges.of(one.unchanged)),
            )
            for one in plans
            if count
        ],
        nothing=f"nothing to do: shards {picture.shorten(ranges.of(chosen))} are {are} read-only",
        plan={
            "cluster": topology.cluster,
            "read_only": wanted.value,
            "nodes": [one.as_json() for one in plans],
        },
        question=f"{verb} writes to {where}?",
        carry_out=lambda progress: fleet.carry_out(
            topology, plans, wanted, wait_s=wait.total_seconds(), progress=progress
        ),
        done=lambda _: f"done: {where} {verb.lower()} writes",
    )


def _shards(topology: Topology, text: str | None, name: str | None) -> Sequence[ShardId]:
    """Return the chosen shards: a list, or all of a node; raises UsageError."""
    from shardctl.topology import routes

    if (text is None) == (name is None):
        raise UsageError("expected SHARDS or --node", hint="give one of them")
    if text is not None:
        return routes.listed(topology, text)
    return routes.node(topology, name or "").shards


rows_app = App()

_MISPLACED = ("table", "shard", "node", "belongs_to", "by", "value", "primary_key")

SearchedArgument = Annotated[
    str | None, typer.Argument(help="Shards to search, for example 2-3,17; all by default.")
]
TableOption = Annotated[
    list[str] | None,
    typer.Option(metavar="<name>", help="Search only this table; can be repeated."),
]


@rows_app.callback()
def rows() -> None:
    """Find rows that are in a wrong shard."""


@rows_app.command()
def misplaced(
    ctx: Context,
    shards: SearchedArgument = None,
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
    output: ListingOption = "table",
) -> None:
    """List rows whose key belongs to another shard; exit 1 if there are any.

    A migration's `-- shardctl: key TABLE.COLUMN`, or `database.keys`, names the key's column. In
    other tables, the shard in the id counts. Reads every row.
    """
    from shardctl.maintenance import misplaced as searching
    from shardctl.topology import routes

    topology = load_topology(ctx)
    if statements and output not in ("table", "json"):
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


def _show(topology: Topology, report: Found, output: str, *, statements: bool) -> None:
    if report.found and statements and output == "table":
        for line in _script(topology, report.found):
            # On a screen no value may be more than text; a file has the values as they are.
            print(printable(line) if sys.stdout.isatty() else line)
        return
    rows = [*_lines(report.found)]
    if output == "table":
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
        where = (table.name, str(table.shard), table.node, str(one.belongs_to), table.column)
        yield from ((*where, value, key or "") for key, value, *_ in one.examples)


repack_app = App()

_RECENT = Duration(days=7)
_SECOND = Duration(seconds=1)
_WAIT = Duration(minutes=1)
_SHOWN = 20
"""How many tables the plan shows, the worst first."""
_LEFT_OUT = {
    "little": "too little estimated bloat (--min-bloat)",
    "recent": "repacked recently (--recent)",
    "unknown": "bloat unknown, without ANALYZE or while locked (--min-bloat 0 includes them)",
}


@repack_app.command(cls=Changing)
def repack(
    ctx: Context,
    shards: Annotated[
        str | None, typer.Argument(help="For example 2-3,17; all by default.")
    ] = None,
    *,
    min_bloat: Annotated[
        int, typer.Option(min=0, max=99, metavar="<percent>", help="The least estimated bloat.")
    ] = 20,
    recent: Annotated[
        Duration, duration_option("Skip tables that were repacked within this time.")
    ] = _RECENT,
    jobs: Annotated[int, typer.Option(min=1, max=16, help="Tables at a time per node.")] = 1,
    wait_timeout: Annotated[
        Duration,
        duration_option("Skip a table that is in use for longer, for example 1m.", least=_SECOND),
    ] = _WAIT,
    terminate: Annotated[
        bool, typer.Option(help="Do not skip it: cancel statements and end sessions that use it.")
    ] = False,
    no_superuser_check: Annotated[
        bool, typer.Option(help="Allow a role that is not a superuser.")
    ] = False,
) -> None:
    """Rewrite bloated tables with pg_repack, in index order, while they are in use.

    The worst come first; bloat is estimated from the statistics of ANALYZE. A table is written in
    the order of the index that it is clustered by, or of its primary key. If it is interrupted or
    killed, run it again: it repacks the rest.
    """
    from shardctl.maintenance import repack as repacking
    from shardctl.state import lock
    from shardctl.topology import routes

    topology = load_topology(ctx)
    options = repacking.Options(
        min_bloat / 100,
        recent.total_seconds(),
        jobs,
        -(-wait_timeout.ms // 1000),  # pg_repack takes whole seconds
        terminate=terminate,
        superuser_check=not no_superuser_check,
    )
    chosen = routes.listed(topology, shards)
    plan = repacking.plan(topology, chosen, options)
    lock.require_all_free(topology, plan.nodes, command=repacking.COMMAND)
    result = run_change(
        ctx,
        pending=plan.nodes,
        header=("node", "table", "size", "bloat, estimated", "verdict"),
        rows=map(_row, plan.shown[:_SHOWN]),
        nothing="nothing to repack",
        notes=[*_notes(plan)],
        plan=_json(plan, None),
        question=_question(plan),
        carry_out=lambda progress: repacking.Repack(topology, plan, progress, say).carry_out(),
        result=lambda result: _json(plan, result),
        done=_done,
    )
    if not ctx.obj.dry_run:
        _end(plan, result.error if result else None)


def _notes(plan: Plan) -> Iterator[str]:
    """Tell what the table of the worst tables leaves out."""
    if len(shown := plan.shown) > _SHOWN:
        size = picture.size(sum(one.size_bytes for one in shown[_SHOWN:]))
        yield f"{plural(len(shown) - _SHOWN, 'table')} more ({size}); -o json has them all"
    for verdict, count in _left_out(plan).items():
        if count:
            yield f"skipped: {plural(count, 'table')}: {_LEFT_OUT[verdict]}"
    yield from (f"node {node}: {note}" for node, note in plan.notes)
    for node, view in plan.views.items():
        for one in view.leftovers:
            of, objects = one.name or "a dropped table", ", ".join(one.objects)
            yield (
                f"node {node}: leftovers of a killed pg_repack of {of}: {objects}\n"
                "  drop them with DROP EXTENSION pg_repack CASCADE, and CREATE EXTENSION pg_repack"
            )


def _left_out(plan: Plan) -> dict[str, int]:
    return {verdict: len(plan.of(verdict)) for verdict in _LEFT_OUT}  # type: ignore[arg-type]  # its keys are verdicts


def _row(one: Table) -> tuple[str, str, str, str, str]:
    bloat = picture.size(one.bloat_bytes)
    if one.bloat_bytes is not None and one.size_bytes:
        bloat += f" ({100 * one.bloat_bytes // one.size_bytes} %)"
    return (
        one.node,
        one.full_name,
        picture.size(one.size_bytes),
        bloat,
        one.why_not or f"by {one.index}",
    )


def _question(plan: Plan) -> str:
    chosen = plan.of("repack")
    size = picture.size(sum(one.size_bytes for one in chosen))
    return f"Repack {plural(len(chosen), 'table')} ({size}) on {plural(len(plan.nodes), 'node')}?"


def _done(result: Repack) -> str:
    done = "" if result.error else "done: "
    freed = picture.size(result.freed_bytes)
    return f"{done}{plural(len(result.after), 'table')} repacked; {freed} freed"


def _json(plan: Plan, result: Repack | None) -> dict[str, Any]:
    """Return the shape of docs/reference/json.md; skipped tables are only counted."""
    after = result.after if result else {}
    left = result.left if result else {}
    tables = []
    for one in plan.shown:
        reported = one.as_json()
        if one in after:
            reported |= {"state": "repacked", "after_bytes": after[one]}
        elif one in left:
            reported |= {"state": "left", "reason": left[one]}
        tables.append(reported)
    return {
        "tables": tables,
        "left_out": _left_out(plan),
        "leftovers": [
            {"node": node, "table": one.name, "objects": list(one.objects)}
            for node, view in plan.views.items()
            for one in view.leftovers
        ],
        "notes": [{"node": node, "note": note} for node, note in plan.notes],
        "reclaimed_bytes": result.freed_bytes if result else 0,
    }


def _end(plan: Plan, error: ShardctlError | None) -> None:
    """Raise the errors at the end: tables that remain, and tables that cannot be repacked."""
    from shardctl.maintenance.repack import tables_refused

    errors = error.parts() if error else []
    if refused := plan.of("refused"):
        errors = [*errors, tables_refused(refused)]
    if errors:
        raise together(errors)
