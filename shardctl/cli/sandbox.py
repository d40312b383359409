"""`shardctl sandbox` and `demo`: local fleets of real servers, for trying, rehearsing, tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardctl.cli.command import App, HereChanging
from shardctl.cli.context import load_topology, topology_file
from shardctl.cli.options import Report, ReportOption
from shardctl.cli.output import confirm, emit, print_table, say
from shardctl.cli.progress import bars
from shardctl.cli.traffic import traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardctl.cli.context import Settings
    from shardctl.sandbox.poolers import PoolerState
    from shardctl.sandbox.servers import Down, State
    from shardctl.topology.model import Node, Pooler, Topology


sandbox_app = App()

FORESEEN = {
    "make": "would be created and started",
    "start": "would be started",
    "reload": "is up; would reload its settings",
    "up": "is up",
}
DID = {"started": "started", "up": "was up", "reloaded": "was up; settings reloaded"}


@sandbox_app.command()
def new(
    ctx: typer.Context,
    *,
    shards: Annotated[
        int, typer.Option("--shards", metavar="N", min=1, max=8192, help="How many shards.")
    ],
    nodes: Annotated[
        int, typer.Option("--nodes", metavar="M", min=1, help="How many nodes own them.")
    ],
    spare: Annotated[
        int, typer.Option("--spare", metavar="K", min=0, help="How many nodes own no shards.")
    ] = 0,
    port: Annotated[
        int,
        typer.Option("--port", metavar="P", min=1, help="The pooler's; the nodes get the next."),
    ] = 6100,
) -> None:
    """Write a topology for local servers; never overwrites an existing file."""
    from shardctl.sandbox import new as topology

    path = topology_file(ctx)
    data = topology.write(path, shards=shards, nodes=nodes, spare=spare, port=port)
    say(f"wrote {path}; the servers' data will be in {data}")
    say("  run `shardctl sandbox up` to start the servers")


@sandbox_app.command(cls=HereChanging)
def up(ctx: typer.Context) -> None:
    """Start a server for every node that owns shards, and every pooler; skips running ones.

    Also starts other nodes that have data: members without shards, and the target of an unfinished
    move. Creates missing data directories of nodes that own shards. The servers keep running after
    the command. Without PgBouncer on this machine it starts only the nodes, and reports that.
    """
    from shardctl.sandbox import poolers, servers

    settings: Settings = ctx.obj
    topology = load_topology(ctx)
    if topology.poolers and not poolers.program():
        say(f"note: {poolers.WITHOUT} poolers")
    if settings.dry_run:
        plan = servers.foresee(topology)
        pooled = poolers.foresee(topology)
        settings.pending = any(does != "up" for _, does in (*plan, *pooled))
        _print(
            ctx,
            topology,
            ("server", "address", "plan"),
            _plan_row,
            nodes=[_at(node) | {"plan": does} for node, does in plan],
            poolers=[_at(pooler) | {"plan": does} for pooler, does in pooled],
        )
        return
    topology = servers.protected(topology)
    with bars() as progress:
        found = servers.up(topology, progress)
        offering = poolers.up(topology, progress)
    _print(
        ctx,
        topology,
        ("server", "address", "result"),
        _up_row,
        nodes=[
            _at(o.node) | {"did": o.did, "made": o.made, "waiting": list(o.waiting)} for o in found
        ],
        poolers=[_at(pooler) | {"did": did} for pooler, did in offering],
    )


@sandbox_app.command(cls=HereChanging)
def down(
    ctx: typer.Context,
    *,
    delete: Annotated[
        bool, typer.Option("--delete", help="Also remove the data that `sandbox up` created.")
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
    _print(
        ctx,
        topology,
        ("server", "result", "data"),
        _down_row,
        nodes=(_down_json(one, "directory") for one in found),
        poolers=(_down_json(one, "file") for one in ended),
    )


@sandbox_app.command()
def status(
    ctx: typer.Context,
    *,
    output: ReportOption = Report.table,  # noqa: ARG001  # the settings have it
) -> None:
    """Show which servers run, and where their data is."""
    from shardctl.sandbox import poolers, servers

    topology = load_topology(ctx)
    _print_states(ctx, topology, servers.status(topology), poolers.status(topology))


sandbox_app.command(cls=HereChanging)(traffic)


def _print(
    ctx: typer.Context,
    topology: Topology,
    header: tuple[str, ...],
    row: Callable[[dict[str, Any]], tuple[str, ...]],
    *,
    nodes: Iterable[dict[str, Any]],
    poolers: Iterable[dict[str, Any]],
) -> None:
    """Print what there is of each server as JSON, or a row of it."""
    settings: Settings = ctx.obj
    found = {"nodes": list(nodes), "poolers": list(poolers)}
    rows = map(row, [*found["nodes"], *found["poolers"]])
    emit(settings.output, header, rows, {"cluster": topology.cluster, **found})


def _print_states(
    ctx: typer.Context, topology: Topology, nodes: Iterable[State], poolers: Iterable[PoolerState]
) -> None:
    """Print which servers run; the port is the one on which a node listens."""
    _print(
        ctx,
        topology,
        ("server", "address", "state", "version", "pid", "data directory"),
        _state_row,
        nodes=[
            _at(one.node)
            | {"state": one.state, "port": one.port or one.node.port, "major": one.major}
            | {"pid": one.pid, "data_directory": str(one.node.data_directory)}
            | {"made_by_sandbox": one.ours}
            for one in nodes
        ],
        poolers=[
            _at(one.pooler) | {"state": one.state, "pid": one.pid, "config": str(one.pooler.config)}
            for one in poolers
        ],
    )


def _at(one: Node | Pooler) -> dict[str, object]:
    return {"name": one.name, "host": one.host, "port": one.port}


def _address(one: dict[str, Any]) -> str:
    return f"{one['host']}:{one['port']}"


def _plan_row(one: dict[str, Any]) -> tuple[str, ...]:
    return one["name"], _address(one), FORESEEN[one["plan"]]


def _up_row(one: dict[str, Any]) -> tuple[str, ...]:
    waiting = ", ".join(one.get("waiting", ()))
    needed = f"; restart needed for: {waiting}" if waiting else ""
    return one["name"], _address(one), DID[one["did"]] + needed


def _down_row(one: dict[str, Any]) -> tuple[str, ...]:
    data = "removed" if one["deleted"] else ""
    if one["left"]:
        data = f"left: {': '.join(one['left'].values())}"
    return one["name"], "was down" if one["did"] == "down" else "stopped", data


def _down_json(one: Down, kind: str) -> dict[str, object]:
    return {
        "name": one.server.name,
        "did": "stopped" if one.was_up else "down",
        "deleted": [str(path) for path in one.deleted],
        "left": {kind: str(one.left[0]), "reason": one.left[1]} if one.left else None,
    }


def _state_row(one: dict[str, Any]) -> tuple[str, ...]:
    data = one.get("data_directory") or one["config"]
    server = one["name"], _address(one), one["state"]
    return *server, one.get("major") or "", str(one["pid"] or ""), data


demo_app = App()


@demo_app.command()
def demo(
    ctx: typer.Context,
    *,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the servers running, and show how to connect.")
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
    if not poolers.program():
        say(f"note: {poolers.WITHOUT} it")
    with tour.fleet(keep=keep) as topology:
        steps = list(tour.run(topology))
        print_table(
            ("step", "result", "seconds"), [(s.did, s.result, f"{s.seconds:.2f}") for s in steps]
        )
        for words in (("verify", "--deep"), ("status", "--sample", "0")):
            print(f"\nshardctl {' '.join(words)}", flush=True)
            tour.show(topology, *words)
    if keep:
        _show_how_to_connect(topology)
    else:
        say("stopped the servers and removed their directory; run it with --keep to keep them")


def _show_how_to_connect(topology: Topology) -> None:
    from shardctl.topology import routes

    route, table = routes.of_shard(topology, 0), "photos_by_user"
    server: Node | Pooler = route.node
    name: str = topology.database.name
    if route.poolers:
        server, name = route.poolers[0]
    else:
        table = f"{route.schema}.{table}"
    login = f"-h {server.host} -p {server.port} -U {topology.database.app_roles[0]} {name}"
    say(f"""
The servers are running. Try:
  export SHARDCTL_TOPOLOGY={topology.path}
  shardctl sandbox status
  shardctl route 31341
  psql {login} -c 'TABLE {table} LIMIT 5'
Stop and delete them:
  shardctl sandbox down --delete --yes && rm -r {topology.path.parent}""")
