"""`shardctl repack`: pg_repack over the tables of shards, in index order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardctl.cli import picture
from shardctl.cli.command import App, Changing, run_change
from shardctl.cli.context import load_topology
from shardctl.cli.options import Duration, duration_option
from shardctl.cli.output import plural, say
from shardctl.errors import ShardctlError, together

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.maintenance.repack import Plan, Repack, Table

app = App()

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


@app.command(cls=Changing)
def repack(
    ctx: typer.Context,
    shards: Annotated[
        str | None, typer.Argument(help="For example 2-3,17; all by default.")
    ] = None,
    *,
    min_bloat: Annotated[
        int, typer.Option(min=0, max=99, metavar="PERCENT", help="The least estimated bloat.")
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
