"""`shardctl pgbouncer`: what the poolers offer, as files and in force."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli.context import load_topology
from shardctl.cli.options import DryRunOption, Report, ReportOption, YesOption, command_app
from shardctl.cli.output import always_json, plural, print_json, print_table, say

if TYPE_CHECKING:
    from shardctl.provision.poolers import Compared, PoolersPlan
    from shardctl.topology.model import Pooler, Topology

app = command_app(
    help="Render, compare and apply the aliases that the poolers offer.",
    no_args_is_help=True,
)

NamesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[POOLER]...", help="Only these; all by default.")
]


@app.command()
def render(
    ctx: typer.Context,
    pooler: NamesArgument = None,
) -> None:
    """Print the file of aliases as it should be; changes nothing.

    The map's version in its head is the databases', so the nodes have to be there.
    """
    from shardctl.provision import maps, poolers
    from shardctl.state import lock

    topology = load_topology(ctx)
    chosen = _choose(topology, pooler)
    version = maps.version(topology, purpose=lock.purpose("pgbouncer render"))
    for one in chosen:
        print(poolers.rendered(topology, one, version), end="")


@app.command()
def diff(
    ctx: typer.Context,
    pooler: NamesArgument = None,
    *,
    output: ReportOption = Report.table,
) -> None:
    """Show what differs between each pooler's file and what it should be; exit 1 if anything.

    Looks at files only: `shardctl verify` also looks at what the poolers have loaded.
    """
    from shardctl.provision import maps, poolers
    from shardctl.state import lock

    with always_json(output):
        topology = load_topology(ctx)
        chosen = _choose(topology, pooler)
        version = maps.version(topology, purpose=lock.purpose("pgbouncer diff"))
        found = poolers.compare(topology, chosen, version)
    if output is Report.json:
        print_json({"format": 1, "poolers": [one.as_json() for one in found]})
    else:
        _print_diffs(found)
    if any(one.state != "same" for one in found):
        raise typer.Exit(1)


@app.command()
def apply(
    ctx: typer.Context,
    pooler: NamesArgument = None,
    *,
    output: ReportOption = Report.table,
    dry_run: DryRunOption = False,
    yes: YesOption = False,  # noqa: ARG001  # every changing command takes it; apply never asks
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace a file that was changed by hand or is another's."),
    ] = False,
) -> None:
    """Bring every pooler's aliases to what the topology says, and see that it offers them.

    Writes the file, keeps the one before, lets the pooler read it, and compares what it offers.
    A pooler that does not take it gets the old file back. A topology that contradicts the map in
    the databases is refused: a stale file must not lead clients to a node that does not own them.
    """
    from shardctl.cli.progress import bars
    from shardctl.provision import maps, poolers
    from shardctl.state import lock

    purpose = lock.purpose(poolers.APPLY)
    with always_json(output):
        topology = load_topology(ctx)
        chosen = _choose(topology, pooler)
        version = maps.version(topology, purpose=purpose)
        plan = poolers.plan(topology, chosen, version, force=force, purpose=purpose)
        for cost in plan.costs():
            say(f"note: {cost}")
        _show(plan, output)
    if dry_run or not plan.changes():
        return
    with bars() as progress:
        poolers.apply(plan, progress)
    say(f"done: {plural(len(plan.changes()), 'pooler')}, map version {version}")


def _choose(topology: Topology, names: list[str] | None) -> list[Pooler]:
    """Give the poolers that are meant, and say it where there are none at all."""
    from shardctl.provision import poolers

    if not topology.poolers:
        say("the topology has no poolers")
    return poolers.chosen(topology, names or [])


def _show(plan: PoolersPlan, output: Report) -> None:
    if output is Report.json:
        rows = [
            {"name": w.seen.pooler.name, "action": w.action, "aliases": len(w.entries)}
            for w in plan.wanted
        ]
        print_json({"format": 1, "map_version": plan.map_version, "poolers": rows})
        return
    if not plan.wanted:
        return
    print_table(
        ("pooler", "action", "file", "aliases"),
        [
            (
                wanted.seen.pooler.name,
                ACTIONS[wanted.action],
                str(wanted.seen.pooler.databases_file),
                f"{len(wanted.entries):,}",
            )
            for wanted in plan.wanted
        ],
    )


ACTIONS = {
    "write": "write and RELOAD",
    "reload": "RELOAD: the file is right, what is loaded is not",
    "none": "nothing to do",
}


def _print_diffs(found: list[Compared]) -> None:
    for one in found:
        if one.state == "same":
            say(f"pooler {one.pooler.name}: {one.pooler.databases_file} is as it should be")
        elif one.error is not None:
            say(f"pooler {one.pooler.name}: {one.error.message}")
            say(f"  {one.error.hint}")
        else:
            if one.state == "edited":
                what = (
                    "was not written by shardctl" if one.version is None else "was changed by hand"
                )
                say(f"pooler {one.pooler.name}: {one.pooler.databases_file} {what}")
            print(one.diff, end="")
