"""`shardctl sandbox` and `demo`: local fleets of real servers, for trying, rehearsing, tests."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from shardctl.cli import log, picture
from shardctl.cli.command import App, Context, HereChanging, load_topology
from shardctl.cli.options import Duration, ReportOption, duration_option, topology_file
from shardctl.cli.output import confirm, emit, plural, print_json, print_line, print_table, say
from shardctl.cli.progress import bars
from shardctl.errors import UsageError
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardctl.sandbox.poolers import PoolerState
    from shardctl.sandbox.servers import Down, State
    from shardctl.topology.model import Node, Pooler, ShardId, Topology
    from shardctl.traffic.report import Report as Found


app = App()

Aliases = Literal["shard", "node", "direct", "router"]
_ADDRESS = ("host", "port")


@app.command()
def new(
    ctx: Context,
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
def up(ctx: Context) -> None:
    """Start a server for every node that owns shards, and every pooler; skips running ones.

    Also starts other nodes that have data: members without shards, and the target of an unfinished
    move. Creates missing data directories of nodes that own shards. The servers keep running after
    the command. Without PgBouncer on this machine it starts only the nodes, and reports that.
    """
    from shardctl.sandbox import poolers, servers

    topology = load_topology(ctx)
    if topology.poolers and not poolers.program():
        say(f"note: {poolers.WITHOUT} poolers")
    if ctx.obj.dry_run:
        plan = [_at(node, plan=does) for node, does in servers.foresee(topology)]
        pooled = [_at(pooler, plan=does) for pooler, does in poolers.foresee(topology)]
        ctx.obj.pending = any(one["plan"] != "up" for one in (*plan, *pooled))
        _print(ctx, topology, (*_ADDRESS, "plan"), plan, pooled)
        return
    topology = servers.protected(topology)
    with bars() as progress:
        found = servers.up(topology, progress)
        offering = poolers.up(topology, progress)
    for one in found:
        if one.waiting:
            say(f"note: node {one.node.name}: restart needed for: {', '.join(one.waiting)}")
    _print(
        ctx,
        topology,
        (*_ADDRESS, "did"),
        [_at(o.node, did=o.did, made=o.made, waiting=list(o.waiting)) for o in found],
        [_at(pooler, did=did) for pooler, did in offering],
    )


@app.command(cls=HereChanging)
def down(
    ctx: Context,
    *,
    delete: Annotated[
        bool, typer.Option(help="Also remove the data that `sandbox up` created.")
    ] = False,
) -> None:
    """Stop the poolers and the servers of all nodes, including nodes without shards."""
    from shardctl.sandbox import poolers, servers

    topology = load_topology(ctx)
    seen = servers.status(topology)
    ours = [str(one.node.data_directory) for one in seen if delete and one.ours]
    for path in ours:
        say(f"{'would be' if ctx.obj.dry_run else 'to be'} removed: {path}")
    if ctx.obj.dry_run:
        pooled = poolers.status(topology)
        pids = [*(one.pid for one in seen), *(one.pid for one in pooled)]
        ctx.obj.pending = bool(ours) or any(pids)
        _print_states(ctx, topology, seen, pooled)
        return
    if delete:
        confirm(f"Stop the servers and remove {len(ours)} data directories?", yes=ctx.obj.yes)
    with bars() as progress:
        try:
            ended = poolers.down(topology, progress, delete=delete)
        finally:  # a pooler that does not stop must not keep the nodes running
            found = servers.down(topology, progress, delete=delete)
    for one in (*found, *ended):
        if one.left:
            say(f"note: {one.server.name}: left {one.left[0]}: {one.left[1]}")
    nodes = [_down(one, "directory") for one in found]
    _print(ctx, topology, ("did",), nodes, [_down(one, "file") for one in ended])


@app.command()
def status(
    ctx: Context,
    *,
    output: ReportOption = "table",  # noqa: ARG001  # the settings have it
) -> None:
    """Show which servers run, and where their data is."""
    from shardctl.sandbox import poolers, servers

    topology = load_topology(ctx)
    _print_states(ctx, topology, servers.status(topology), poolers.status(topology))


def _print(
    ctx: Context,
    topology: Topology,
    columns: Sequence[str],
    nodes: Sequence[Mapping[str, Any]],
    poolers: Sequence[Mapping[str, Any]],
) -> None:
    """Print these columns of each server, or all that there is as JSON."""
    names = ("name", *columns)
    rows = [[str(one.get(name) or "") for name in names] for one in (*nodes, *poolers)]
    found = {"cluster": topology.cluster, "nodes": nodes, "poolers": poolers}
    emit(ctx.obj.output, ("server", *columns), rows, found)


def _print_states(
    ctx: Context, topology: Topology, nodes: Iterable[State], poolers: Iterable[PoolerState]
) -> None:
    """Print which servers run; the port is the one on which a node listens."""
    _print(
        ctx,
        topology,
        (*_ADDRESS, "state", "major", "pid", "data_directory"),
        [
            _at(
                replace(one.node, port=one.port or one.node.port),
                state=one.state,
                major=one.major,
                pid=one.pid,
                data_directory=str(one.node.data_directory),
                made_by_sandbox=one.ours,
            )
            for one in nodes
        ],
        [
            _at(one.pooler, state=one.state, pid=one.pid, config=str(one.pooler.config))
            for one in poolers
        ],
    )


def _at(one: Node | Pooler, **value: object) -> dict[str, Any]:
    return {"name": one.name, "host": one.host, "port": one.port, **value}


def _down(one: Down, kind: str) -> dict[str, Any]:
    return {
        "name": one.server.name,
        "did": "stopped" if one.was_up else "down",
        "deleted": [str(path) for path in one.deleted],
        "left": {kind: str(one.left[0]), "reason": one.left[1]} if one.left else None,
    }


_CLIENTS = 8
_LOGINS = 100
_SECONDS = Duration(seconds=30)


@app.command(cls=HereChanging)
def traffic(
    ctx: Context,
    *,
    clients: Annotated[
        int | None, typer.Option(min=1, max=256, help="How many clients; 8 unless --connect.")
    ] = None,
    connect: Annotated[
        bool,
        typer.Option(help="Log in for each operation, at a fixed rate, however long answers take."),
    ] = False,
    logins: Annotated[
        float | None,
        typer.Option(
            min=0.1, max=2000, help=f"Logins a second with --connect; {_LOGINS} by default."
        ),
    ] = None,
    seconds: Annotated[
        Duration,
        duration_option("How long to run; Ctrl-C ends it.", least=Duration(milliseconds=100)),
    ] = _SECONDS,
    rate: Annotated[
        float | None, typer.Option(min=0.01, help="The most operations a second per client.")
    ] = None,
    aliases: Annotated[
        Aliases,
        typer.Option(
            help="Connect by aliases of shards or of nodes, directly, or with shardctl.router."
        ),
    ] = "shard",
    shards: Annotated[
        str | None, typer.Option(help="Only these shards, for example 0-3,17.")
    ] = None,
    keep_table: Annotated[bool, typer.Option(help="Keep the load's table and its rows.")] = False,
) -> None:
    """Write, update and read rows in every shard, then check each acknowledged one.

    The load creates a table of its own, and drops it at the end. Each client has its own shards,
    waits for every answer, and never sends a write twice. With aliases of nodes, or without
    poolers, clients read the map, and read it again after an error of a fence.

    With `--connect` there are no such clients, unless `--clients` adds some. Each operation starts
    at its scheduled time with a new login, as independent users of an application do. Latencies
    count from the scheduled time.

    Every second it prints, on standard error, the time, operations a second, their latencies, and
    errors. Exit code 1 if an operation failed, or a row is lost, duplicated, or on the wrong node.
    """
    from shardctl.sandbox import servers
    from shardctl.topology import routes
    from shardctl.traffic.client_routes import TABLE
    from shardctl.traffic.load import Load

    topology = load_topology(ctx)
    servers.require_local(topology, managed=False)
    for unfit, why in (
        (logins is not None and not connect, "--logins works only with --connect"),
        (rate is not None and connect and clients is None, "--rate works only with clients"),
        (connect and aliases == "router", "--connect does not work with shardctl.router"),
    ):
        if unfit:
            raise UsageError(why, hint="run `shardctl sandbox traffic --help`")
    chosen = None if shards is None else routes.listed(topology, shards)
    ctx.obj.pending = True
    if ctx.obj.dry_run:
        _foresee(topology, aliases, chosen, ctx.obj.output)
        return
    loading = Load(
        topology,
        clients=clients if clients is not None else 0 if connect else _CLIENTS,
        aliases=aliases,
        seconds=seconds.total_seconds(),
        rate=rate,
        logins=(logins or _LOGINS) if connect else None,
        shards=chosen,
        keep_table=keep_table,
    )
    with loading as load:
        try:
            for second in load.watch():
                say(f"{time.strftime('%H:%M:%S')}  {_text(asdict(second))}")
            load.stop()
        except KeyboardInterrupt:
            say("interrupted: stopping the load, then checking its rows")
        found = load.check()
    if keep_table:
        say(f"kept table {TABLE} in every shard; the next load empties it")
    elif load.left:
        say(f"note: {', '.join(load.left)}: unreachable: table {TABLE} may still exist there")
    if ctx.obj.json:
        print_json({"format": 1, "cluster": topology.cluster, **found.as_json()})
    else:
        show(found)
    if not found.ok:
        raise typer.Exit(1)


def _foresee(
    topology: Topology, aliases: Aliases, chosen: Sequence[ShardId] | None, output: str | None
) -> None:
    """Run every check of the real run, and print what it would do."""
    from shardctl.traffic import table
    from shardctl.traffic.client_routes import TABLE
    from shardctl.traffic.load import plan

    fleet, route = plan(topology, aliases, chosen)
    with table.alone(topology, [name for name in topology.nodes if fleet.holding(name)]):
        pass
    shards = sorted(fleet.owners if chosen is None else chosen)
    poolers = [pooler.name for pooler in route.poolers]
    found = {"table": TABLE, "shards": shards, "aliases": aliases, "poolers": poolers}
    row = (TABLE, picture.shorten(ranges.of(shards)), ", ".join(poolers) or aliases)
    emit(output, ("table", "shards", "through"), [row], {"cluster": topology.cluster, **found})


def show(found: Found) -> None:
    """Print the results of the load: figures by their names in JSON, errors, wrong rows."""
    figures = found.as_json().items()
    shown = [(k.replace("_", " "), _text(v)) for k, v in figures if v and k not in _APART]
    print_table(("load", ""), shown)
    if found.failures:
        print_table(
            ("SQLSTATE", "errors", "first at", "first message"),
            [(f.code, f"{f.count:,}", f"{f.at_s:.1f} s", f.first) for f in found.failures],
        )
    for example in found.verdict.examples:
        print_line(example)
    print(_verdict(found))


_APART = ("ok", "errors", "examples", "seconds", "shards")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(one)}" for name, one in value.items())
    if isinstance(value, list):
        return picture.shorten(ranges.of(value))
    return f"{value:,}" if isinstance(value, int | float) else str(value or "-")


def _verdict(found: Found) -> str:
    """Return the verdict in one line."""
    faults = [plural(found.errors, "error")] if found.errors else []
    faults += [f"{count:,} {flaw}" for flaw, count in found.verdict.counts.items() if count]
    if found.unserved:
        faults.append(f"no node serves shards {picture.shorten(ranges.of(found.unserved))}")
    rows = plural(found.acknowledged_inserts, "acknowledged row")
    return ", ".join(faults) if faults else f"all is well: {rows} found, each once"


demo_app = App()


@demo_app.command()
def demo(
    ctx: Context,
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
    from shardctl.demo import tour
    from shardctl.sandbox import poolers

    log.open_log(verbose=ctx.obj.verbose)
    if not poolers.program():
        say(f"note: {poolers.WITHOUT} it")
    with tour.fleet(keep=keep) as topology:
        print_table(("step", "result", "seconds"), tour.run(topology))
        print("\nshardctl status", flush=True)
        tour.show(topology, "status", "--sample", "0")
    if not keep:
        say("stopped the servers and removed their directory; run it with --keep to keep them")
        return
    say(f"""
The servers are running. Try:
  export SHARDCTL_TOPOLOGY={topology.path}
  shardctl sandbox status
  shardctl route 31341
Stop and delete them:
  shardctl sandbox down --delete --yes && rm -r {topology.path.parent}""")
