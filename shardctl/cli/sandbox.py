"""`shardctl sandbox` and `demo`: local fleets of real servers, for trying, rehearsing, tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli.command import HereChanging, command_app
from shardctl.cli.context import load_topology, topology_file
from shardctl.cli.options import Report, ReportOption
from shardctl.cli.output import confirm, emit, print_table, say
from shardctl.cli.progress import bars
from shardctl.cli.traffic import traffic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardctl.cli.context import Settings
    from shardctl.sandbox.local import Foreseen
    from shardctl.sandbox.poolers import PoolerState, PoolerUp
    from shardctl.sandbox.servers import Down, State, Up
    from shardctl.topology.model import Node, Pooler, Topology


sandbox_app = command_app(
    help="Run the nodes of a topology as real servers on this machine.",
    no_args_is_help=True,
)

FORESEEN = {
    "make": "would be created and started",
    "start": "would be started",
    "reload": "is up; would reload its settings",
    "up": "is up",
}
DID = {"started": "started", "up": "was up", "reloaded": "was up; settings reloaded"}
STATUS = ("server", "address", "state", "version", "pid", "data directory")


@sandbox_app.command()
def new(
    ctx: typer.Context,
    *,
    shards: Annotated[int, typer.Option("--shards", metavar="N", help="How many shards.")],
    nodes: Annotated[int, typer.Option("--nodes", metavar="M", help="How many nodes own them.")],
    spare: Annotated[
        int, typer.Option("--spare", metavar="K", help="How many spare nodes own no shards.")
    ] = 0,
    port: Annotated[
        int,
        typer.Option("--port", metavar="P", help="The pooler's port; the nodes get the next ones."),
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
    if topology.poolers and not poolers.available():
        say(f"note: {poolers.WITHOUT} poolers")
    if settings.dry_run:
        plan = servers.foresee(topology)
        pooled = poolers.foresee(topology)
        both: list[tuple[Node | Pooler, Foreseen]] = [*plan, *pooled]
        settings.pending = any(does != "up" for _, does in both)
        _print(
            topology,
            settings.output,
            ("server", "address", "plan"),
            [(one.name, f"{one.host}:{one.port}", FORESEEN[does]) for one, does in both],
            nodes=[_at(node) | {"plan": does} for node, does in plan],
            poolers=[_at(pooler) | {"plan": does} for pooler, does in pooled],
        )
        return
    topology = servers.protected(topology)
    with bars() as progress:
        found = servers.up(topology, progress)
        offering = poolers.up(topology, progress)
    _print(
        topology,
        settings.output,
        ("server", "address", "result"),
        [*map(_up_row, found), *map(_pooler_up_row, offering)],
        nodes=map(_up_json, found),
        poolers=map(_pooler_up_json, offering),
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
        _print(
            topology,
            settings.output,
            STATUS,
            [*map(_row, seen), *map(_pooler_row, pooled)],
            nodes=map(_json, seen),
            poolers=map(_pooler_json, pooled),
        )
        return
    if delete:
        confirm(f"Stop the servers and remove {len(ours)} data directories?", yes=settings.yes)
    with bars() as progress:
        try:
            ended = poolers.down(topology, progress, delete=delete)
        finally:  # a pooler that does not stop must not keep the nodes running
            found = servers.down(topology, progress, delete=delete)
    _print(
        topology,
        settings.output,
        ("server", "result", "data"),
        map(_down_row, [*found, *ended]),
        nodes=(_down_json(one, "directory") for one in found),
        poolers=(_down_json(one, "file") for one in ended),
    )


@sandbox_app.command()
def status(ctx: typer.Context, *, output: ReportOption = Report.table) -> None:
    """Show which servers run, and where their data is."""
    from shardctl.sandbox import poolers, servers

    topology = load_topology(ctx)
    found = servers.status(topology)
    pooled = poolers.status(topology)
    _print(
        topology,
        output,
        STATUS,
        [*map(_row, found), *map(_pooler_row, pooled)],
        nodes=map(_json, found),
        poolers=map(_pooler_json, pooled),
    )


sandbox_app.command(cls=HereChanging)(traffic)


def _print(
    topology: Topology,
    output: str | None,
    header: tuple[str, ...],
    rows: Iterable[tuple[str, ...]],
    *,
    nodes: Iterable[dict[str, object]],
    poolers: Iterable[dict[str, object]],
) -> None:
    found = {"nodes": list(nodes), "poolers": list(poolers)}
    emit(output, header, rows, {"cluster": topology.cluster, **found})


def _up_row(one: Up) -> tuple[str, str, str]:
    result = DID[one.did]
    if one.waiting:
        result += f"; restart needed for: {', '.join(one.waiting)}"
    return one.node.name, f"{one.node.host}:{one.node.port}", result


def _up_json(one: Up) -> dict[str, object]:
    more = {"did": one.did, "made": one.made, "waiting": list(one.waiting)}
    return _at(one.node) | more


def _down_row(one: Down) -> tuple[str, str, str]:
    data = "removed" if one.deleted else ""
    if one.left:
        data = f"left: {one.left[0]}: {one.left[1]}"
    return one.server.name, "stopped" if one.was_up else "was down", data


def _down_json(one: Down, kind: str) -> dict[str, object]:
    return {
        "name": one.server.name,
        "did": "stopped" if one.was_up else "down",
        "deleted": [str(path) for path in one.deleted],
        "left": {kind: str(one.left[0]), "reason": one.left[1]} if one.left else None,
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


def _at(one: Node | Pooler) -> dict[str, object]:
    return {"name": one.name, "host": one.host, "port": one.port}


def _pooler_up_row(one: PoolerUp) -> tuple[str, str, str]:
    return one.pooler.name, f"{one.pooler.host}:{one.pooler.port}", DID[one.did]


def _pooler_up_json(one: PoolerUp) -> dict[str, object]:
    return _at(one.pooler) | {"did": one.did}


def _pooler_row(one: PoolerState) -> tuple[str, ...]:
    pooler = one.pooler
    address = f"{pooler.host}:{pooler.port}"
    return pooler.name, address, one.state, "", str(one.pid or ""), str(pooler.config.parent)


def _pooler_json(one: PoolerState) -> dict[str, object]:
    pooler = one.pooler
    return {
        "name": pooler.name,
        "state": one.state,
        "host": pooler.host,
        "port": pooler.port,
        "pid": one.pid,
        "config": str(pooler.config),
    }


demo_app = command_app()


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
    if not poolers.available():
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

    database = topology.database
    route = routes.of_shard(topology, 0)
    if route.poolers:
        pooler, alias = route.poolers[0]
        login = f"-h {pooler.host} -p {pooler.port} -U {database.app_roles[0]} {alias}"
        table = "photos_by_user"
    else:
        login = f"-h {route.node.host} -p {route.node.port} -U {database.user} {database.name}"
        table = f"{route.schema}.photos_by_user"
    say(f"""
The servers are running. Try:
  export SHARDCTL_TOPOLOGY={topology.path}
  shardctl sandbox status
  shardctl route 31341
  psql {login} -c 'TABLE {table} LIMIT 5'
Stop and delete them:
  shardctl sandbox down --delete --yes && rm -r {topology.path.parent}""")
