"""`shardctl sandbox traffic`: a load that checks each row it wrote."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import picture, values
from shardctl.cli.context import Settings, load_topology
from shardctl.cli.output import emit, plural, print_json, print_line, print_table, say
from shardctl.errors import Problems, ShardctlError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.topology.model import ShardId, Topology
    from shardctl.traffic.report import Report as Found
    from shardctl.traffic.report import Spread

_CLIENTS = 8
_LOGINS = 100
_SECONDS = values.Duration(seconds=30)


class Aliases(StrEnum):
    """The aliases that the load uses."""

    shard = "shard"
    node = "node"
    direct = "direct"
    router = "router"


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
        values.Duration,
        values.duration_option(
            "How long to run; Ctrl-C ends it.", least=values.Duration(milliseconds=100)
        ),
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
    from shardctl.topology import routes
    from shardctl.traffic.client_routes import TABLE
    from shardctl.traffic.load import Load

    topology = load_topology(ctx)
    require_local(topology)
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
    loading = Load.start(
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


def require_local(topology: Topology) -> None:
    """Refuse a topology with servers on other machines; raises Problems."""
    from shardctl.hosts import ports
    from shardctl.sandbox.servers import not_local

    errors: list[ShardctlError] = [
        not_local(node.name, f"host {node.host} is not a loopback address")
        for node in topology.nodes.values()
        if not ports.is_loopback(node.host)
    ]
    if errors:
        raise Problems(errors)


def _foresee(
    topology: Topology, aliases: Aliases, chosen: Sequence[ShardId] | None, settings: Settings
) -> None:
    """Run every check of the real run, and print what it would do."""
    from shardctl.topology import ranges
    from shardctl.traffic import table
    from shardctl.traffic.client_routes import TABLE
    from shardctl.traffic.load import plan

    fleet, route = plan(topology, aliases.value, chosen)
    with table.alone(topology, [name for name in topology.nodes if fleet.holding(name)]):
        pass
    shards = sorted(fleet.map.owners if chosen is None else chosen)
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
    from shardctl.topology import ranges

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
            ("longest on these", _ms(found.longest_moved_ms)),
            ("longest elsewhere", _ms(found.longest_stayed_ms)),
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
    from shardctl.topology import ranges

    faults = [plural(found.errors, "error")] if found.errors else []
    faults += [f"{count:,} {flaw}" for flaw, count in found.verdict.counts.items() if count]
    if found.unserved:
        faults.append(f"no node serves shards {picture.shorten(ranges.of(found.unserved))}")
    rows = plural(found.acknowledged_inserts, "acknowledged row")
    return ", ".join(faults) if faults else f"all is well: {rows} found, each once"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"
