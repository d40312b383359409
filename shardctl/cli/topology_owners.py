"""`shardctl topology diff` and `pull`: owners in the file and owners in the databases' maps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer  # the command's signature is read when it is called

from shardctl.cli import nodes
from shardctl.cli.context import load_topology, note_changes
from shardctl.cli.options import DryRunOption, Report, ReportOption, YesOption
from shardctl.cli.output import confirm, plural, print_json, print_table, say
from shardctl.errors import Refused

if TYPE_CHECKING:
    from shardctl.maintenance.file_owners import Compared


def diff(ctx: typer.Context, *, output: ReportOption = Report.table) -> None:
    """Show the shards whose owner in the file is not the owner in the map; exit 1 if any.

    The databases decide who owns a shard. Nodes whose maps disagree are named. Unreachable nodes
    are named, and the other nodes compared, with exit code 3.
    """
    from shardctl.maintenance import file_owners, places
    from shardctl.state import lock

    topology = load_topology(ctx)
    fleet = places.look(topology, purpose=lock.purpose("topology diff"))
    compared = file_owners.compare(fleet)
    _show(compared, output)
    problems = [*file_owners.unread(fleet, compared), *(d.error for d in compared.disagreements)]
    nodes.require_all(problems, answered=True)
    if not compared.same:
        raise typer.Exit(1)


def pull(
    ctx: typer.Context,
    *,
    output: ReportOption = Report.table,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Write the owners that the databases' maps have into the topology file.

    Shows the difference and asks. Changes only the values of `shards:`; comments and order stay.
    All nodes with shards have to be reachable and their maps have to agree, no move may be
    unfinished, and a file that has changed in the meantime is left as it is.
    """
    from shardctl.maintenance import file_owners, places
    from shardctl.state import lock

    topology = load_topology(ctx)

    def look() -> Compared:
        fleet = places.look(topology, purpose=lock.purpose(file_owners.COMMAND))
        compared = file_owners.compare(fleet)
        file_owners.require_settled(fleet, compared)
        return compared

    compared = look()
    planned = file_owners.plan(compared)
    _show(compared, output)
    note_changes(ctx, compared.differences)
    if dry_run or compared.same:
        return
    count = sum(len(one.shards) for one in compared.differences)
    confirm(f"Write the new owners of {plural(count, 'shard')} into {topology.path}?", yes=yes)
    if look() != compared:  # the operator may have looked at the difference for a long time
        raise Refused(
            "map_changed",
            "the map changed after the difference was shown; nothing was written",
            hint="run the command again to see the new difference",
        )
    file_owners.write(planned)
    say(f"done: {topology.path} has the owners of map version {compared.version}")


def _show(compared: Compared, output: Report) -> None:
    if output is Report.json:
        print_json(compared.as_json())
    elif compared.differences:
        print_table(
            ("shards", "count", "in the file", "in the map"),
            [
                (one.listed, f"{len(one.shards):,}", one.first or "-", one.second or "-")
                for one in compared.differences
            ],
        )
    elif not compared.disagreements:
        print(f"{compared.topology.path} has the owners of map version {compared.version}")
