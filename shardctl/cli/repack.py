"""`shardctl repack`: pg_repack over the tables of shards, in index order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardctl.cli import changing, picture, values
from shardctl.cli.command import App, Changing
from shardctl.cli.context import load_topology
from shardctl.cli.output import plural, say

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardctl.errors import ShardctlError
    from shardctl.maintenance.repack import Candidate, Plan, Result

app = App()

_RECENT = values.Duration(days=7)
_SECOND = values.Duration(seconds=1)
_WAIT = values.Duration(minutes=1)
_SHOWN = 20
"""How many tables the plan shows, the worst first."""
_LEFT_OUT = {
    "little": "too little estimated bloat (--min-bloat)",
    "recent": "repacked recently (--recent)",
    "unknown": "bloat unknown without ANALYZE (--min-bloat 0 includes them)",
}


@app.command(cls=Changing)
def repack(
    ctx: typer.Context,
    shards: Annotated[
        str | None,
        typer.Argument(metavar="SHARDS", help="For example 2-3,17; all by default."),
    ] = None,
    *,
    min_bloat: Annotated[
        int,
        typer.Option(
            "--min-bloat", min=0, max=99, metavar="PERCENT", help="The least estimated bloat."
        ),
    ] = 20,
    recent: Annotated[
        values.Duration,
        values.duration_option("--recent", "Skip tables that were repacked within this time."),
    ] = _RECENT,
    jobs: Annotated[
        int,
        typer.Option("--jobs", min=1, max=16, metavar="N", help="Tables at a time per node."),
    ] = 1,
    wait_timeout: Annotated[
        values.Duration,
        values.duration_option(
            "--wait-timeout",
            "Skip a table that is in use for longer, for example 1m.",
            least=_SECOND,
        ),
    ] = _WAIT,
    terminate: Annotated[
        bool,
        typer.Option(
            "--terminate", help="Do not skip it: cancel statements and end sessions that use it."
        ),
    ] = False,
    no_superuser_check: Annotated[
        bool, typer.Option("--no-superuser-check", help="Allow a role that is not a superuser.")
    ] = False,
) -> None:
    """Rewrite bloated tables with pg_repack, in index order, while they are in use.

    The worst come first; bloat is estimated from the statistics of ANALYZE. A table is written in
    the order of the index that it is clustered by, or of its primary key. If it is interrupted or
    killed, run it again: it repacks the rest.
    """
    from shardctl.maintenance import repack as repacking
    from shardctl.maintenance.repack_look import Options
    from shardctl.state import lock
    from shardctl.topology import routes

    topology = load_topology(ctx)
    options = Options(
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
    shown = [one for one in plan.candidates if one.verdict in ("repack", "refused")]
    result = changing.run(
        ctx,
        pending=plan.nodes,
        header=("node", "table", "size", "bloat, estimated", "verdict"),
        rows=map(_row, shown[:_SHOWN]),
        nothing="nothing to repack",
        notes=[*_notes(plan, shown)],
        plan=_json(plan, None),
        question=_question(plan),
        carry_out=lambda progress: repacking.carry_out(topology, plan, progress, say),
        result=lambda result: _json(plan, result),
        done=_done,
    )
    if not ctx.obj.dry_run:
        _end(plan, result.error if result else None)


def _notes(plan: Plan, shown: Sequence[Candidate]) -> Iterator[str]:
    """Tell what the table of the worst tables leaves out."""
    if len(shown) > _SHOWN:
        size = picture.size(sum(one.table.size_bytes for one in shown[_SHOWN:]))
        yield f"{plural(len(shown) - _SHOWN, 'table')} more ({size}); -o json has them all"
    for verdict, why in _LEFT_OUT.items():
        if count := plan.left_out(verdict):  # type: ignore[arg-type]  # its keys are verdicts
            yield f"skipped: {plural(count, 'table')}: {why}"
    for node, view in plan.views.items():
        yield from (f"node {node}: {note}" for note in view.notes)
        for one in view.leftovers:
            of, objects = one.name or "a dropped table", ", ".join(one.objects)
            yield (
                f"node {node}: leftovers of a killed pg_repack of {of}: {objects}\n"
                "  drop them with DROP EXTENSION pg_repack CASCADE, and CREATE EXTENSION pg_repack"
            )


def _row(one: Candidate) -> tuple[str, str, str, str, str]:
    table = one.table
    bloat = picture.size(table.bloat_bytes)
    if table.bloat_bytes is not None and table.size_bytes:
        bloat += f" ({100 * table.bloat_bytes // table.size_bytes} %)"
    verdict = one.why_not or f"by {table.index}"
    return one.node, one.name, picture.size(table.size_bytes), bloat, verdict


def _question(plan: Plan) -> str:
    size = picture.size(sum(one.table.size_bytes for one in plan.chosen))
    nodes = plural(len({one.node for one in plan.chosen}), "node")
    return f"Repack {plural(len(plan.chosen), 'table')} ({size}) on {nodes}?"


def _done(result: Result) -> str:
    given = picture.size(sum(one.before_bytes - one.after_bytes for one in result.repacked))
    done = "" if result.error else "done: "
    return f"{done}{plural(len(result.repacked), 'table')} repacked; {given} freed"


def _json(plan: Plan, result: Result | None) -> dict[str, Any]:
    """Return the shape of docs/reference/json.md; skipped tables are only counted."""
    from shardctl.maintenance.repack import COMMAND

    repacked = result.repacked if result else ()
    left = result.left if result else {}
    done = {one.candidate: one for one in repacked}
    tables = []
    for one in plan.candidates:
        if one.verdict not in (COMMAND, "refused"):
            continue
        reported = one.as_json()
        if one in done:
            reported["size_bytes"], reported["after_bytes"] = (
                done[one].before_bytes,
                done[one].after_bytes,
            )
            reported["state"] = "repacked"
        elif one in left:
            reported["state"], reported["reason"] = "left", left[one]
        tables.append(reported)
    return {
        "tables": tables,
        "left_out": {verdict: plan.left_out(verdict) for verdict in _LEFT_OUT},  # type: ignore[arg-type]  # as above
        "leftovers": [
            {"node": node, "table": one.name, "objects": list(one.objects)}
            for node, view in plan.views.items()
            for one in view.leftovers
        ],
        "notes": [
            {"node": node, "note": note} for node, view in plan.views.items() for note in view.notes
        ],
        "reclaimed_bytes": sum(one.before_bytes - one.after_bytes for one in repacked),
    }


def _end(plan: Plan, error: ShardctlError | None) -> None:
    """Raise the errors at the end: tables that remain, and tables that cannot be repacked."""
    from shardctl.errors import together
    from shardctl.maintenance.repack import tables_refused

    refused = [(one.node, one.name, one.why_not or "") for one in plan.refused]
    errors = [*(error.parts() if error else []), *([tables_refused(refused)] if refused else [])]
    if errors:
        raise together(errors)
