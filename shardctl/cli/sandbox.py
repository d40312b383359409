"""`shardctl sandbox` and `demo`: local fleets of real servers, for trying, rehearsing, tests."""

from __future__ import annotations

import time
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardctl.cli import log, picture
from shardctl.cli.command import App, HereChanging
from shardctl.cli.context import Settings, load_topology, topology_file
from shardctl.cli.options import Duration, Report, ReportOption, duration_option
from shardctl.cli.output import confirm, emit, plural, print_json, print_line, print_table, say
from shardctl.cli.progress import bars
from shardctl.errors import UsageError
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardctl.sandbox.poolers import PoolerState
    from shardctl.sandbox.servers import Down, State, Up
    from shardctl.topology.model import Node, Pooler, ShardId, Topology
    from shardctl.traffic.report import Report as Found
    from shardctl.traffic.report import Spread

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
    if topology.poolers and not poolers.program():
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
    offered = (_at(pooler, DID[did], did=did) for pooler, did in offering)
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


_CLIENTS = 8
_LOGINS = 100
_SECONDS = Duration(seconds=30)


class Aliases(StrEnum):
    """The aliases that the load uses."""

    shard = "shard"
    node = "node"
    direct = "direct"
    router = "router"


@app.command(cls=HereChanging)
def traffic(
    ctx: typer.Context,
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
    ] = Aliases.shard,
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
        (connect and aliases is Aliases.router, "--connect does not work with shardctl.router"),
    ):
        if unfit:
            raise UsageError(why, hint="run `shardctl sandbox traffic --help`")
    chosen = None if shards is None else routes.listed(topology, shards)
    settings: Settings = ctx.obj
    settings.pending = True
    if settings.dry_run:
        _foresee(topology, aliases, chosen, settings)
        return
    loading = Load(
        topology,
        clients=clients if clients is not None else 0 if connect else _CLIENTS,
        aliases=aliases.value,
        seconds=seconds.total_seconds(),
        rate=rate,
        logins=(logins or _LOGINS) if connect else None,
        shards=chosen,
        keep_table=keep_table,
    )
    with loading as load:
        try:
            for second in load.watch():
                say(f"{time.strftime('%H:%M:%S')}  {line(second)}")
            load.stop()
        except KeyboardInterrupt:
            say("interrupted: stopping the load, then checking its rows")
        found = load.check()
    if keep_table:
        say(f"kept table {TABLE} in every shard; the next load empties it")
    elif load.left:
        say(f"note: {', '.join(load.left)}: unreachable: table {TABLE} may still exist there")
    if settings.json:
        print_json({"format": 1, "cluster": topology.cluster, **found.as_json()})
    else:
        show(found)
    if not found.ok:
        raise typer.Exit(1)


def _foresee(
    topology: Topology, aliases: Aliases, chosen: Sequence[ShardId] | None, settings: Settings
) -> None:
    """Run every check of the real run, and print what it would do."""
    from shardctl.traffic import table
    from shardctl.traffic.client_routes import TABLE
    from shardctl.traffic.load import plan

    fleet, route = plan(topology, aliases.value, chosen)
    with table.alone(topology, [name for name in topology.nodes if fleet.holding(name)]):
        pass
    shards = sorted(fleet.owners if chosen is None else chosen)
    poolers = [pooler.name for pooler in route.poolers]
    found = {"table": TABLE, "shards": shards, "aliases": aliases, "poolers": poolers}
    through = f"through {', '.join(poolers)}" if poolers else _THROUGH[aliases]
    row = (TABLE, picture.shorten(ranges.of(shards)), through)
    emit(
        settings.output, ("table", "shards", "load"), [row], {"cluster": topology.cluster, **found}
    )


def line(second: Spread) -> str:
    """Write the line of one second.

    >>> from shardctl.traffic.report import Spread
    >>> line(Spread(1234, 0, 0.812, 3.1, 12.25))
    ' 1,234 operations  p50   0.8 ms  p99   3.1 ms  max  12.2 ms  errors 0'
    """
    return (
        f"{second.operations:>6,} operations  "
        f"p50 {_ms(second.p50_ms):>8}  p99 {_ms(second.p99_ms):>8}  "
        f"max {_ms(second.longest_ms):>8}  errors {second.errors:,}"
    )


def show(found: Found) -> None:
    """Print the results of the load: a summary, errors, wrong rows."""
    print_table(("load", ""), _summary(found))
    if found.failures:
        print_table(
            ("SQLSTATE", "errors", "first at", "first message"),
            [(f.code, f"{f.count:,}", f"{f.at_s:.1f} s", f.first) for f in found.failures],
        )
    for example in found.verdict.examples:
        print_line(example)
    print(_verdict(found))


def _summary(found: Found) -> list[tuple[str, str]]:
    overall = found.latencies.overall
    per_second = overall.operations / found.elapsed_s if found.elapsed_s else 0
    updates = f"{found.acknowledged_updates:,} updates"
    delayed = f"(this process was delayed {_ms(found.held_up_ms)})"
    rows = [
        ("clients", f"{found.clients or 'none'}, {_THROUGH[found.aliases]}"),
        ("operations", f"{overall.operations:,} in {found.elapsed_s:.1f} s, {per_second:,.0f}/s"),
        ("acknowledged", f"{found.acknowledged_inserts:,} inserts, {updates}"),
        ("p50, p99", f"{_ms(overall.p50_ms)}, {_ms(overall.p99_ms)}"),
        ("longest", f"{_ms(overall.longest_ms)} {delayed}"),
    ]
    if found.logins is not None:
        longest = found.logins.latencies.overall.longest_ms
        late = f"started up to {_ms(found.logins.late_ms)} late"
        rows.append(("logins", f"{found.logins.per_s:g}/s, longest {_ms(longest)} ({late})"))
    if found.moved:
        rows += [
            ("moved shards", picture.shorten(ranges.of(found.moved))),
            ("longest on these", _ms(found.latencies.longest_ms(moved=True))),
            ("longest elsewhere", _ms(found.latencies.longest_ms(moved=False))),
        ]
    if found.fenced:
        rows.append(("fence errors", f"{found.fenced:,}, then done by the new owner"))
    rows += [(f"node {name}", f"not checked: {why}") for name, why in found.unseen.items()]
    return rows


_THROUGH = {
    "shard": "by aliases of shards",
    "node": "by aliases of nodes",
    "direct": "directly on the nodes",
    "router": "with shardctl.router",
}


def _verdict(found: Found) -> str:
    """Return the verdict in one line."""
    faults = [plural(found.errors, "error")] if found.errors else []
    faults += [f"{count:,} {flaw}" for flaw, count in found.verdict.counts.items() if count]
    if found.unserved:
        faults.append(f"no node serves shards {picture.shorten(ranges.of(found.unserved))}")
    rows = plural(found.acknowledged_inserts, "acknowledged row")
    return ", ".join(faults) if faults else f"all is well: {rows} found, each once"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"


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
    from shardctl.demo import tour
    from shardctl.sandbox import poolers

    settings: Settings = ctx.obj
    log.open_log(verbose=settings.verbose)
    if not poolers.program():
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
