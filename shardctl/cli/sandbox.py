"""`shardctl sandbox`: a local fleet of real servers, for trying, rehearsing and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli.context import load_topology, topology_file
from shardctl.cli.options import DryRunOption, Report, ReportOption, YesOption, command_app
from shardctl.cli.output import always_json, confirm, print_json, print_table, say
from shardctl.cli.progress import bars

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardctl.sandbox.servers import Down, State, Up
    from shardctl.topology.model import Topology

app = command_app(
    help="Run the nodes of a topology as real servers on this machine.",
    no_args_is_help=True,
)

FORESEEN = {
    "make": "would be made and started",
    "start": "would be started",
    "reload": "is up; would reload its settings",
    "up": "is up",
}
DID = {"started": "started", "up": "was up", "reloaded": "was up; settings reloaded"}
STATUS = ("node", "address", "state", "version", "pid", "data directory")


@app.command()
def new(
    ctx: typer.Context,
    *,
    shards: Annotated[int, typer.Option("--shards", metavar="N", help="How many shards.")],
    nodes: Annotated[int, typer.Option("--nodes", metavar="M", help="How many nodes own them.")],
    spare: Annotated[
        int, typer.Option("--spare", metavar="K", help="How many more nodes own none yet.")
    ] = 0,
    port: Annotated[
        int,
        typer.Option("--port", metavar="P", help="The pooler's port; the nodes have the next."),
    ] = 6100,
) -> None:
    """Write a topology for local servers; a file that is there is never overwritten."""
    from shardctl.sandbox import new as topology

    path = topology_file(ctx)
    data = topology.write(path, shards=shards, nodes=nodes, spare=spare, port=port)
    say(f"wrote {path}; the servers' data will be in {data}")
    say("  `shardctl sandbox up` starts the servers")


@app.command()
def up(
    ctx: typer.Context,
    *,
    output: ReportOption = Report.table,
    dry_run: DryRunOption = False,
    yes: YesOption = False,  # noqa: ARG001  # every changing command takes it; up never asks
) -> None:
    """Start a server for every node that owns shards; a second run starts what is missing.

    Makes data directories where there are none. The servers outlive the command.
    """
    from shardctl.sandbox import servers

    with always_json(output):
        topology = load_topology(ctx)
        if dry_run:
            plan = servers.foresee(topology)
            _print(
                topology,
                output,
                ("node", "address", "plan"),
                [(n.name, f"{n.host}:{n.port}", FORESEEN[does]) for n, does in plan],
                [{"name": n.name, "host": n.host, "port": n.port, "plan": d} for n, d in plan],
            )
            return
        with bars() as progress:
            found = servers.up(topology, progress)
    _print(
        topology,
        output,
        ("node", "address", "result"),
        map(_up_row, found),
        map(_up_json, found),
    )


@app.command()
def down(
    ctx: typer.Context,
    *,
    delete: Annotated[
        bool, typer.Option("--delete", help="Remove the data that `sandbox up` made, too.")
    ] = False,
    output: ReportOption = Report.table,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Stop the servers of all nodes, those without shards too."""
    from shardctl.sandbox import servers

    with always_json(output):
        topology = load_topology(ctx)
        seen = servers.status(topology)
        ours = [str(one.node.data_directory) for one in seen if delete and one.ours]
        for path in ours:
            say(f"{'would be' if dry_run else 'to be'} removed: {path}")
        if dry_run:
            _print(topology, output, STATUS, map(_row, seen), map(_json, seen))
            return
        if delete:
            confirm(f"Stop the servers and remove {len(ours)} data directories?", yes=yes)
        with bars() as progress:
            found = servers.down(topology, progress, delete=delete)
    _print(
        topology,
        output,
        ("node", "result", "data"),
        map(_down_row, found),
        map(_down_json, found),
    )


@app.command()
def status(ctx: typer.Context, *, output: ReportOption = Report.table) -> None:
    """Show which servers run, and where their data is."""
    from shardctl.sandbox import servers

    with always_json(output):
        topology = load_topology(ctx)
        found = servers.status(topology)
    _print(topology, output, STATUS, map(_row, found), map(_json, found))


def _print(
    topology: Topology,
    output: Report,
    header: tuple[str, ...],
    rows: Iterable[tuple[str, ...]],
    values: Iterable[dict[str, object]],
) -> None:
    if output is Report.json:
        print_json({"format": 1, "cluster": topology.cluster, "nodes": list(values)})
    else:
        print_table(header, rows)


def _up_row(one: Up) -> tuple[str, str, str]:
    said = DID[one.did]
    if one.waiting:
        said += f"; after a restart: {', '.join(one.waiting)}"
    return one.node.name, f"{one.node.host}:{one.node.port}", said


def _up_json(one: Up) -> dict[str, object]:
    return {
        "name": one.node.name,
        "host": one.node.host,
        "port": one.node.port,
        "did": one.did,
        "made": one.made,
        "waiting": list(one.waiting),
    }


def _down_row(one: Down) -> tuple[str, str, str]:
    data = "removed" if one.deleted else ""
    if one.left:
        data = f"left: {one.left[0]}: {one.left[1]}"
    return one.node.name, "stopped" if one.was_up else "was down", data


def _down_json(one: Down) -> dict[str, object]:
    return {
        "name": one.node.name,
        "did": "stopped" if one.was_up else "down",
        "deleted": [str(path) for path in one.deleted],
        "left": {"directory": str(one.left[0]), "reason": one.left[1]} if one.left else None,
    }


def _row(one: State) -> tuple[str, ...]:
    address = f"{one.node.host}:{one.port or one.node.port}"
    pid = str(one.pid or "")
    return one.node.name, address, one.state, one.major or "", pid, str(one.node.data_directory)


def _json(one: State) -> dict[str, object]:
    return {
        "name": one.node.name,
        "state": one.state,
        "host": one.node.host,
        "port": one.port or one.node.port,
        "major": one.major,
        "pid": one.pid,
        "data_directory": str(one.node.data_directory),
        "made_by_sandbox": one.ours,
    }
