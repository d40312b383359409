"""`shardctl pgbouncer`: the aliases of the poolers, in files and loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import options
from shardctl.cli.command import App, Changing, run_change
from shardctl.cli.context import load_topology
from shardctl.cli.options import AllOrNothingOption, Report, ReportOption
from shardctl.cli.output import plural, print_json, say

if TYPE_CHECKING:
    from shardctl.provision.poolers import Compared
    from shardctl.topology.model import Pooler, Topology

app = App()

NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(autocompletion=options.pooler_names, help="Only these; all by default."),
]


@app.command()
def render(
    ctx: typer.Context,
    pooler: NamesArgument = None,
) -> None:
    """Print the expected file of aliases; changes nothing.

    Its header has the map version of the databases. It lists unreachable nodes, and the reachable
    nodes must agree on the map.
    """
    from shardctl.pgbouncer import render

    topology, chosen, version = _expected(ctx, pooler)
    for one in chosen:
        print(render.databases(topology, one, version), end="")


@app.command()
def diff(
    ctx: typer.Context,
    pooler: NamesArgument = None,
    *,
    output: ReportOption = Report.table,
) -> None:
    """Show the differences between each pooler's file and the expected one; exit 1 if any.

    Compares only files: `shardctl verify` also checks what the poolers have loaded.
    """
    from shardctl.provision import poolers

    found = poolers.compare(*_expected(ctx, pooler))
    if output is Report.json:
        print_json({"format": 1, "poolers": [one.as_json() for one in found]})
    else:
        _print_diffs(found)
    if any(one.state != "same" for one in found):
        raise typer.Exit(1)


@app.command(cls=Changing)
def apply(
    ctx: typer.Context,
    pooler: NamesArgument = None,
    *,
    force: Annotated[
        bool, typer.Option(help="Replace a file that was edited or is not shardctl's.")
    ] = False,
    all_or_nothing: AllOrNothingOption = False,
) -> None:
    """Bring every pooler's aliases up to date, and check that it offers them.

    Writes the file, keeps a backup, runs RELOAD, and checks the aliases that the pooler offers.
    If the pooler rejects the file, it restores the old one. It refuses a topology that contradicts
    the map in the databases: a stale file must not route clients to a node that does not own their
    shard. It lists unreachable nodes, exit code 3, if the reachable nodes agree on the map.
    """
    from shardctl.provision import maps, poolers
    from shardctl.state import lock

    purpose = lock.purpose(poolers.APPLY)
    topology = load_topology(ctx)
    chosen = _choose(topology, pooler)
    agreed = maps.agreed(topology, purpose=purpose, strict=all_or_nothing)
    plan = poolers.plan(
        topology, chosen, agreed.version, force=force, purpose=purpose, unread=agreed.unread
    )
    poolers.require_free(plan)
    poolers_changed = plural(len(plan.changes()), "pooler")
    run_change(
        ctx,
        pending=plan.changes(),
        header=("pooler", "action", "file", "aliases"),
        rows=[
            (
                wanted.pooler.name,
                ACTIONS[wanted.action],
                str(wanted.pooler.databases_file),
                f"{len(wanted.entries):,}",
            )
            for wanted in plan.wanted
        ],
        plan={
            "map_version": plan.map_version,
            "poolers": [
                {"name": w.pooler.name, "action": w.action, "aliases": len(w.entries)}
                for w in plan.wanted
            ],
            "left_out": [one.as_json() for one in agreed.left_out],
        },
        question=f"Change {poolers_changed}?",
        carry_out=lambda progress: poolers.apply(plan, progress),
        done=lambda _: f"done: {poolers_changed}, map version {agreed.version}",
        left_out=agreed.left_out,
    )


def _choose(topology: Topology, names: list[str] | None) -> list[Pooler]:
    """Return the chosen poolers; report a topology without poolers."""
    from shardctl.provision import poolers

    if not topology.poolers:
        say("the topology has no poolers")
    return poolers.chosen(topology, names or [])


def _expected(ctx: typer.Context, names: list[str] | None) -> tuple[Topology, list[Pooler], int]:
    """Return the chosen poolers and the version of the map; name nodes that cannot be read."""
    from shardctl.provision import maps
    from shardctl.state import lock

    topology = load_topology(ctx)
    chosen = _choose(topology, names)
    agreed = maps.agreed(topology, purpose=lock.purpose("pgbouncer"), strict=False)
    for one in agreed.left_out:
        say(f"note: {one.message}")
    return topology, chosen, agreed.version


ACTIONS = {
    "write": "write and RELOAD",
    "reload": "RELOAD: the file is up to date, but not loaded",
    "none": "nothing to do",
}


def _print_diffs(found: list[Compared]) -> None:
    for one in found:
        if one.state == "same":
            say(f"pooler {one.pooler.name}: {one.pooler.databases_file} is up to date")
        elif one.error is not None:
            say(f"pooler {one.pooler.name}: {one.error.message}\n  {one.error.hint}")
        else:
            if one.state == "edited":
                file = one.pooler.databases_file
                say(f"pooler {one.pooler.name}: {file} is not as shardctl has written it")
            print(one.diff, end="")
