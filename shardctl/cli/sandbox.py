"""`shardctl sandbox` and `demo`: local fleets of real servers, for trying, rehearsing, tests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardctl.cli.command import App, HereChanging
from shardctl.cli.context import load_topology, topology_file
from shardctl.cli.options import Report, ReportOption
from shardctl.cli.output import confirm, emit, print_table, say
from shardctl.cli.progress import bars
from shardctl.cli.traffic import traffic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardctl.cli.context import Settings
    from shardctl.sandbox.poolers import PoolerState
    from shardctl.sandbox.servers import Down, State, Up
    from shardctl.topology.model import Node, Pooler, Topology

    Shown = tuple[Any, ...]


app = App()

FORESEEN = {
    "make": "would be created and started",
    "start": "would be started",
    "reload": "is up; would reload its settings",
    "up": "is up",
}
DID = {"started": "started", "up": "was up", "reloaded": "was up; settings reloaded"}


@app.command()
def new(
    ctx: typer.Context,
    *,
    shards: Annotated[int, typer.Option(min=1, max=8192, help="How many shards.")],
    nodes: Annotated[int, typer.Option(min=1, help="How many nodes own them.")],
    spare: Annotated[int, typer.Option(min=0, help="How many nodes own no shards.")] = 0,
    port: Annotated[int, typer.Option(min=1, help="The pooler's; the nodes get the next.")] = 6100,
) -> None:
    """Write a topology for local servers; never overwrites an existing file."""
    from shardctl.sandbox import new as topology

    path = topology_file(ctx)
    data = topology.write(path, shards=shards, nodes=nodes, spare=spare, port=port)
    say(f"wrote {path}; the servers' data will be in {data}")
    say("  run `shardctl sandbox up` to start the servers")


@app.command(cls=HereChanging)
def up(ctx: typer.Context) -> None:
    """Start a server for every node that owns shards, and every pooler; skips running ones.

    Also starts other nodes that have data: members without shards, and the target of an unfinished
    move. Creates missing data directories of nodes that own shards. The servers keep running after
    the command. Without PgBouncer on this machine it starts only the nodes, and reports that.
    """
    from shardctl.sandbox import poolers, servers

    settings: Settings = ctx.obj
    topology = load_topology(ctx)
    if topology.poolers and not poolers.available():
        say(f"note: {poolers.WITHOUT} poolers")
    if settings.dry_run:
        plan = servers.foresee(topology)
        pooled = poolers.foresee(topology)
        settings.pending = any(does != "up" for _, does in (*plan, *pooled))
        _print(
            ctx,
            topology,
            ("address", "plan"),
            (_at(node, FORESEEN[does], plan=does) for node, does in plan),
            (_at(pooler, FORESEEN[does], plan=does) for pooler, does in pooled),
        )
        return
    topology = servers.protected(topology)
    with bars() as progress:
        found = servers.up(topology, progress)
        offering = poolers.up(topology, progress)
    offered = (_at(one.pooler, DID[one.did], did=one.did) for one in offering)
    _print(ctx, topology, ("address", "result"), map(_up, found), offered)


@app.command(cls=HereChanging)
def down(
    ctx: typer.Context,
    *,
    delete: Annotated[
        bool, typer.Option(help="Also remove the data that `sandbox up` created.")
    ] = False,
) -> None:
    """Stop the poolers and the servers of all nodes, including nodes without shards."""
    from shardctl.sandbox import poolers, servers

    settings: Settings = ctx.obj
    topology = load_topology(ctx)
    seen = servers.status(topology)
    ours = [str(one.node.data_directory) for one in seen if delete and one.ours]
    for path in ours:
        say(f"{'would be' if settings.dry_run else 'to be'} removed: {path}")
    if settings.dry_run:
        pooled = poolers.status(topology)
        pids = [*(one.pid for one in seen), *(one.pid for one in pooled)]
        settings.pending = bool(ours) or any(pids)
        _print_states(ctx, topology, seen, pooled)
        return
    if delete:
        confirm(f"Stop the servers and remove {len(ours)} data directories?", yes=settings.yes)
    with bars() as progress:
        try:
            ended = poolers.down(topology, progress, delete=delete)
        finally:  # a pooler that does not stop must not keep the nodes running
            found = servers.down(topology, progress, delete=delete)
    nodes = (_down(one, "directory") for one in found)
    _print(ctx, topology, ("result", "data"), nodes, (_down(one, "file") for one in ended))


@app.command()
def status(
    ctx: typer.Context,
    *,
    output: ReportOption = Report.table,  # noqa: ARG001  # the settings have it
) -> None:
    """Show which servers run, and where their data is."""
    from shardctl.sandbox import poolers, servers

    topology = load_topology(ctx)
    _print_states(ctx, topology, servers.status(topology), poolers.status(topology))


app.command(cls=HereChanging)(traffic)


def _print(
    ctx: typer.Context,
    topology: Topology,
    header: tuple[str, ...],
    nodes: Iterable[Shown],
    poolers: Iterable[Shown],
) -> None:
    """Print what there is of each server as JSON, or the cells of its row."""
    settings: Settings = ctx.obj
    found = {"nodes": [*nodes], "poolers": [*poolers]}
    value = {kind: [one for one, *_ in shown] for kind, shown in found.items()}
    rows = [(one["name"], *cells) for shown in found.values() for one, *cells in shown]
    emit(settings.output, ("server", *header), rows, {"cluster": topology.cluster, **value})


def _print_states(
    ctx: typer.Context, topology: Topology, nodes: Iterable[State], poolers: Iterable[PoolerState]
) -> None:
    """Print which servers run; the port is the one on which a node listens."""
    header = ("address", "state", "version", "pid", "data directory")
    _print(ctx, topology, header, map(_node_state, nodes), map(_pooler_state, poolers))


def _at(one: Node | Pooler, cell: str, **value: object) -> Shown:
    return {"name": one.name, "host": one.host, "port": one.port, **value}, _address(one), cell


def _address(one: Node | Pooler) -> str:
    return f"{one.host}:{one.port}"


def _up(one: Up) -> Shown:
    needed = f"; restart needed for: {', '.join(one.waiting)}" if one.waiting else ""
    cell = DID[one.did] + needed
    return _at(one.node, cell, did=one.did, made=one.made, waiting=list(one.waiting))


def _down(one: Down, kind: str) -> Shown:
    value = {
        "name": one.server.name,
        "did": "stopped" if one.was_up else "down",
        "deleted": [str(path) for path in one.deleted],
        "left": {kind: str(one.left[0]), "reason": one.left[1]} if one.left else None,
    }
    data = "removed" if one.deleted else ""
    if one.left:
        data = f"left: {one.left[0]}: {one.left[1]}"
    return value, "stopped" if one.was_up else "was down", data


def _node_state(one: State) -> Shown:
    node = replace(one.node, port=one.port or one.node.port)
    data, pid = str(node.data_directory), one.pid
    value = {"major": one.major, "pid": pid, "data_directory": data, "made_by_sandbox": one.ours}
    shown = _at(node, one.state, state=one.state, **value)
    return *shown, one.major or "", str(pid or ""), data


def _pooler_state(one: PoolerState) -> Shown:
    config = str(one.pooler.config)
    shown = _at(one.pooler, one.state, state=one.state, pid=one.pid, config=config)
    return *shown, "", str(one.pid or ""), config


demo_app = App()


@demo_app.command()
def demo(
    ctx: typer.Context,
    *,
    keep: Annotated[
        bool, typer.Option(help="Keep the servers running, and show how to connect.")
    ] = False,
) -> None:
    """Show the whole story on a throw-away fleet of real local servers.

    Starts PostgreSQL and PgBouncer in a temporary directory, and makes them a fleet from the
    example's topology.yaml. Writes rows into every shard through PgBouncer, decodes an id and
    routes it back to its shard. Then, under load, moves shards 2 and 3 to a new node, 6 and 7 to
    another, and streams shard 1 to a node that serves already. Compares every row, verifies and
    prunes. Without PgBouncer, clients connect to the nodes directly.
    """
    from shardctl.cli import log
    from shardctl.demo import tour
    from shardctl.sandbox import poolers

    settings: Settings = ctx.obj
    log.open_log(verbose=settings.verbose)
    if not poolers.available():
        say(f"note: {poolers.WITHOUT} it")
    with tour.fleet(keep=keep) as topology:
        print_table(("step", "result", "seconds"), tour.run(topology))
        print("\nshardctl status", flush=True)
        tour.show(topology, "status", "--sample", "0")
    if keep:
        _show_how_to_connect(topology)
    else:
        say("stopped the servers and removed their directory; run it with --keep to keep them")


def _show_how_to_connect(topology: Topology) -> None:
    say(f"""
The servers are running. Try:
  export SHARDCTL_TOPOLOGY={topology.path}
  shardctl sandbox status
  shardctl route 31341
Stop and delete them:
  shardctl sandbox down --delete --yes && rm -r {topology.path.parent}""")
