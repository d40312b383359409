"""`shardctl read-only`: refuse writes to shards, and accept them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from shardctl.cli import completion, picture, values
from shardctl.cli.command import command_app
from shardctl.cli.context import load_topology, note_changes
from shardctl.cli.options import DryRunOption, LockWaitOption, Report, ReportOption, YesOption
from shardctl.cli.output import confirm, plural, print_at_end, print_table, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.access.read_only import Wanted
    from shardctl.access.read_only_fleet import NodePlan
    from shardctl.topology.model import ShardId, Topology

app = command_app(
    help="Refuse writes to shards while they serve reads; accept them again.", no_args_is_help=True
)

ShardsArgument = Annotated[
    str | None, typer.Argument(metavar="[SHARDS]", help="For example 2-3,17; or use --node.")
]
NodeOption = Annotated[
    str | None,
    typer.Option(
        "--node",
        metavar="NODE",
        autocompletion=completion.nodes,
        help="All shards of this node.",
    ),
]
WAIT = values.Duration(seconds=30)
WaitOption = Annotated[
    values.Duration,
    typer.Option(
        "--wait",
        metavar="DURATION",
        parser=values.duration(),
        help="How long to wait for sessions that use a table, for example 30s.",
    ),
]


class Named(NamedTuple):
    """The shards as given: exactly one of the two is set."""

    shards: str | None
    node: str | None


@app.command()
def on(
    ctx: typer.Context,
    shards: ShardsArgument = None,
    *,
    node: NodeOption = None,
    wait: WaitOption = WAIT,
    output: ReportOption = Report.table,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    lock_wait: LockWaitOption = None,
) -> None:
    """Refuse writes to the tables of shards for all roles, owners and superusers too.

    Writers get SQLSTATE 25006 with the shard's number; reads continue. When the command returns,
    all earlier writes have ended. It refuses neither DDL nor sequences. It lasts until
    `read-only off`, also after a restart of the server or a move of the shard.
    """
    from shardctl.access.read_only import Wanted

    named = Named(shards, node)
    _run(ctx, Wanted.on, named, wait, output, dry_run=dry_run, yes=yes, lock_wait=lock_wait)


@app.command()
def off(
    ctx: typer.Context,
    shards: ShardsArgument = None,
    *,
    node: NodeOption = None,
    wait: WaitOption = WAIT,
    output: ReportOption = Report.table,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    lock_wait: LockWaitOption = None,
) -> None:
    """Accept writes to shards again, and restore their schemas.

    The tables accept writes at once; removing the triggers then waits for readers.
    """
    from shardctl.access.read_only import Wanted

    named = Named(shards, node)
    _run(ctx, Wanted.off, named, wait, output, dry_run=dry_run, yes=yes, lock_wait=lock_wait)


def _run(
    ctx: typer.Context,
    wanted: Wanted,
    named: Named,
    wait: values.Duration,
    output: Report,
    *,
    dry_run: bool,
    yes: bool,
    lock_wait: values.Duration | None,
) -> None:
    """Plan, show, ask, carry out, report."""
    from shardctl.access import read_only_fleet as fleet
    from shardctl.cli.progress import bars
    from shardctl.state import lock

    topology = load_topology(ctx, lock_wait=lock_wait)
    chosen = _shards(topology, named)
    plans = fleet.plan(topology, chosen, wanted, purpose=lock.purpose(wanted.command))
    changed = [one.node for one in plans if one.todo]
    lock.require_all_free(topology, changed, command=wanted.command)
    _show(topology, plans, wanted, output)
    count = sum(len(one.todo) for one in plans)
    note_changes(ctx, count)
    if dry_run or not count:
        return
    where = f"{plural(count, 'shard')} on {plural(sum(bool(p.todo) for p in plans), 'node')}"
    asked = f"Refuse writes to {where}?" if wanted == "on" else f"Accept writes to {where}?"
    confirm(asked, yes=yes)
    with bars() as progress:
        fleet.carry_out(topology, plans, wanted, wait_s=wait.total_seconds(), progress=progress)
    say(f"done: {where} {'refuse' if wanted == 'on' else 'accept'} writes")


def _shards(topology: Topology, named: Named) -> Sequence[ShardId]:
    """Return the chosen shards: a list, or all of a node; raises UsageError."""
    from shardctl.errors import UsageError
    from shardctl.topology import routes
    from shardctl.topology.model import NodeName

    text, name = named
    if text is not None and name is not None:
        raise UsageError("SHARDS and --node exclude each other", hint="give one of them")
    if text is None and name is None:
        raise UsageError("no shards given", hint="specify SHARDS or --node NODE")
    if text is not None:
        return routes.listed(topology, text)
    node = topology.nodes.get(NodeName(name or ""))
    if node is None:
        raise UsageError(f"unknown node {name!r}", hint=f"nodes: {', '.join(topology.nodes)}")
    return node.shards


def _show(topology: Topology, plans: Sequence[NodePlan], wanted: Wanted, output: Report) -> None:
    from shardctl.topology import ranges

    if output is Report.json:
        nodes = [one.as_json() for one in plans]
        print_at_end(
            {
                "format": 1,
                "cluster": topology.cluster,
                "read_only": wanted.value,
                "nodes": nodes,
            }
        )
    elif not any(one.todo for one in plans):
        count = sum(len(one.unchanged) for one in plans)
        are = "already read-only" if wanted == "on" else "not read-only"
        print(f"nothing to do: {plural(count, 'shard')} {'is' if count == 1 else 'are'} {are}")
    else:
        print_table(
            ("node", "read-only", "shards", "tables", "unchanged"),
            [
                (
                    one.node,
                    wanted.value,
                    picture.shorten(ranges.of(one.todo)),
                    f"{one.tables:,}",
                    picture.shorten(ranges.of(one.unchanged)),
                )
                for one in plans
            ],
        )
