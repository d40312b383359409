"""`shardctl status` and `shards`: the fleet at a glance, how large and busy every shard is."""

from __future__ import annotations

import sys
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from shardctl.cli import moving, picture
from shardctl.cli import progress as watching
from shardctl.cli.command import App, Context, load_topology
from shardctl.cli.options import (
    SAMPLE,
    ListingOption,
    OfNodeOption,
    ReportOption,
    SampleOption,
    WatchOption,
)
from shardctl.cli.output import draw, emit, fit, paragraph, print_json, say, width
from shardctl.meter import listed
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from shardctl.checks.loads import ShardLoad
    from shardctl.checks.status import NodeStatus, PoolerStatus, Slot, Standby, Status
    from shardctl.state.ledger import Entry


app = App()


@app.command()
def status(
    ctx: Context,
    *,
    output: ReportOption = "table",
    watch: WatchOption = None,
    sample: SampleOption = SAMPLE,
) -> None:
    """Show the fleet: nodes, replication, poolers, moves, and the sizes of shards.

    Changes nothing. Lists unreachable nodes and poolers; exit code 1 if a node with shards is one
    of them. With --watch it repeats until Ctrl-C, with exit code 0.
    """
    from shardctl.checks.status import observe
    from shardctl.errors import ShardctlError
    from shardctl.fanout import Silent

    topology = load_topology(ctx)
    if watch is None:
        with watching.bars() as progress:
            found = observe(topology, sample_s=sample.total_seconds(), progress=progress)
        _print(output, found)
        if unserved(found):
            raise typer.Exit(1)
        return

    def look() -> tuple[Status, bool]:
        nonlocal topology
        try:  # a move writes a new one
            topology = load_topology(ctx)
        except ShardctlError as error:
            say(f"shardctl: {error}; using the previous topology")
        return observe(topology, sample_s=sample.total_seconds(), progress=Silent()), True

    def drawn(found: Status, width: int) -> str:
        return "\n".join([_text(found, width), "", *unreached(found)])

    watching.watch(watch.total_seconds(), look, drawn, partial(_print, output), output)


def _text(found: Status, width: int) -> str:
    """Give the title, the tables, and what is read-only or retired."""
    lines = (paragraph(line, width) for line in kept(found))
    return "\n".join([title(found), *tables(found, width), *lines])


def _print(output: str, found: Status) -> None:
    """Print the result, and unreachable nodes and poolers on standard error."""
    if output == "json":
        print_json(found.as_json())
    else:
        draw(_text(found, width()))
    sys.stdout.flush()
    for line in unreached(found):
        say(f"shardctl: {line}")


_NODES = ("node", "role", "version", "up", "shards", "size", "rows", "sessions", "tps", "disk")
_POOLERS = ("pooler", "state", "version", "clients", "waiting", "servers", "paused")
_RANGES = 3


def title(found: Status) -> str:
    """Give the first line: which cluster, which map, when."""
    version = f"map version {found.map_version}"
    if found.map_version is None:
        version = "map unknown" if unserved(found) else "no map yet"
    return f"cluster {found.cluster}, {version}, {picture.moment(found.time)}"


def unserved(found: Status) -> list[NodeStatus]:
    """Return the nodes with shards that could not be read, or are another node."""
    return [one for one in found.nodes if one.owned and (one.state != "up" or one.error)]


def unreached(found: Status) -> list[str]:
    """Return a line each for what could not be looked at, or is not what the topology says."""
    # The row of a spare node that is absent shows it already.
    failed = [n for n in found.nodes if n.error and n.state != "absent"]
    lines = [f"node {n.name} is {n.state}: {n.error}" for n in failed]
    lines += [f"pooler {p.name} is down: {p.error}" for p in found.poolers if p.error]
    if lost := unserved(found):
        shards = "; ".join(f"{ranges.of(one.owned)} of node {one.name}" for one in lost)
        lines.append(f"shards without a server: {shards}")
    lines += [
        f"the pause on pooler {p.name} waits for open transactions: {', '.join(p.waits_for)}"
        for p in found.poolers
        if p.waits_for
    ]
    if stale := found.stale:
        lines.append(f"old topology (use the newest file, or `shardctl topology pull`): {stale}")
    older = [n.name for n in found.nodes if 0 < (n.map_version or 0) < (found.map_version or 0)]
    lines += [f"older map (run `shardctl init`): {', '.join(older)}"] if older else []
    disks = ((n.name, n.disk_error) for n in found.nodes if n.disk_error)
    return lines + [f"node {name}: free disk space unknown: {error}" for name, error in disks]


def tables(found: Status, width: int) -> list[str]:
    """Make a table of the nodes, of the poolers and of open moves where there are any."""
    told = {one.reverse.slot for one in found.unclosed if one.reverse}  # in the moves' rows
    rows = [_row(node, told) for node in found.nodes]
    header = (*_NODES, "replication") if any(row[-1] for row in rows) else _NODES
    made = [fit(header, (row[: len(header)] for row in rows), width)]
    if found.poolers:
        made.append(fit(_POOLERS, map(_pooler_row, found.poolers), width))
    if found.unclosed:
        made.append(fit(moving.HEADER, (_move_row(found, move) for move in found.unclosed), width))
    return made


def _pooler_row(one: PoolerStatus) -> tuple[str, ...]:
    if one.error is not None:
        return one.name, "down", *["-"] * (len(_POOLERS) - 2)
    waiting = f"{one.waiting:,}"
    if one.waiting:
        waiting += f" (longest {(one.longest_wait_ms or 0) / 1000:.1f} s)"
    return (
        one.name, "up", one.version or "-", f"{one.clients:,}", waiting, f"{one.servers:,}",
        listed(one.paused, most=_RANGES) or "-",
    )  # fmt: skip


def _move_row(found: Status, one: Entry) -> tuple[str, ...]:
    """Give the row of `moves list`, with more about the step."""
    *before, step, who, started, can = moving.row(one, _RANGES)
    slot = found.slot_of(one)
    if slot is not None and slot.lag_bytes is not None:
        held = picture.size(slot.retained_bytes)
        step += f"\n{picture.size(slot.lag_bytes)} behind, holds {held} of WAL"
    if one.progress is not None:
        step += f"\n{picture.copied(one.progress, found.time)}"
    if reversible := moving.reverse(one):
        step += f"\n{reversible}"
    return *before, step, who, started, can


def _row(node: NodeStatus, told: Container[str]) -> tuple[str, ...]:
    listed = picture.shorten(ranges.of(node.owned), parts=_RANGES)
    owned, live = len(node.owned), len(node.sizes)
    if not owned:
        shards = "none"
    elif node.state == "up" and live != owned:
        shards = f"{live:,} of {owned:,}: {listed}"
    else:
        shards = f"{owned:,}: {listed}"
    clients = picture.number(node.sessions)
    if node.idle_in_transaction:
        clients += f" ({node.idle_in_transaction} idle in transaction)"
    free = node.disk_free_bytes
    disk = "-" if free is None else f"{picture.size(free)} free"
    replication = [_standby(s) for s in node.standbys]
    replication += [_slot(s) for s in node.slots if s.name not in told]
    return (
        node.name,
        node.role or node.state.value,
        node.version or "-",
        picture.duration(node.uptime_s),
        shards,
        picture.size(node.size_bytes),
        picture.number(node.rows_estimate),
        clients,
        "-" if node.tps is None else f"{node.tps:,.1f}",
        disk,
        "\n".join(replication),
    )


def _standby(one: Standby) -> str:
    lag = "lag unknown" if one.lag_bytes is None else f"{picture.size(one.lag_bytes)} behind"
    seconds = "" if one.lag_s is None else f", {one.lag_s:.1f} s"
    return f"standby {one.name}: {one.state or 'state unknown'}, {lag}{seconds}"


def _slot(one: Slot) -> str:
    does = "active" if one.active else "inactive"
    lag = "" if one.lag_bytes is None else f"{picture.size(one.lag_bytes)} behind, "
    held = picture.size(one.retained_bytes)
    return f"{one.type} slot {one.name}: {does}, {lag}holds {held} of WAL"


def kept(found: Status) -> list[str]:
    """List what is read-only and what is retired."""
    lines = []
    refusing = sum(len(node.read_only) for node in found.nodes)
    if refusing:
        lines += ["", f"read-only shards: {refusing:,}", *_read_only(found)]
    retired = [one for node in found.nodes for one in node.retired]
    if retired:
        moves = {one.move for one in retired}
        due = [one.due for one in found.moves if one.due is not None and one.move.id in moves]
        size = picture.size(sum(one.size_bytes or 0 for one in retired))
        first = f", the first due from {picture.moment(min(due))} on" if due else ""
        what = f"retired schemas: {len(retired):,}, {size}{first}"
        lines += ["", f"{what}; `shardctl prune --dry-run` lists them"]
    return lines


def _read_only(found: Status) -> Iterator[str]:
    """Tell which shards of which nodes refuse writes, since when and by whom."""
    for node in found.nodes:
        for mark, shards in node.read_only_alike().items():
            since = f" since {picture.moment(mark.since)}" if mark.since else ""
            part = "" if mark.whole else f", only {mark.refusing:,} of {mark.tables:,} tables"
            yield f"  {node.name}: {picture.shorten(ranges.of(shards))}{since}, by {mark.by}{part}"


shards_app = App()

_HEADER = ("shard", "schema", "node", "size", "rows", "writes/s", "scans/s", "last move")
_FIELDS = (
    "shard", "schema", "node", "size_bytes", "rows_estimate", "writes_per_s", "scans_per_s",
    "last_move",
)  # fmt: skip


Sort = Literal["shard", "size", "rows", "tps", "node"]
"""Orders of the list."""


@shards_app.callback()
def shards() -> None:
    """List the shards by size and load."""


@shards_app.command("list")
def list_shards(
    ctx: Context,
    *,
    sort: Annotated[
        Sort, typer.Option(help="The order; tps is writes/s and scans/s together, the most first.")
    ] = "shard",
    node: OfNodeOption = None,
    top: Annotated[int | None, typer.Option(min=1, help="List only the first ones.")] = None,
    sample: SampleOption = SAMPLE,
    output: ListingOption = "table",
) -> None:
    """List every shard with its node, size, rows and load.

    Changes nothing. Load is counted during --sample: rows inserted, updated and deleted a second,
    and scans of tables and indexes a second; PostgreSQL does not count transactions by schema. Rows
    are the estimate of the last ANALYZE. Exit code 3 if a node could not be read: its shards have
    no figures.
    """
    from shardctl.checks import loads
    from shardctl.state import lock
    from shardctl.topology import routes

    topology = load_topology(ctx)
    found = loads.measure(
        topology,
        sample_s=sample.total_seconds(),
        purpose=lock.purpose("shards list"),
        nodes=None if node is None else [routes.node(topology, node)],
    )
    chosen = sorted(found.shards, key=lambda one: _key(one, sort))[:top]
    emit(
        output,
        _HEADER if output == "table" else _FIELDS,
        map(_shown if output == "table" else _fields, chosen),
        {
            "cluster": topology.cluster,
            # A quarter of a second for 8,192 shards.
            "shards": [one.as_json() for one in chosen] if output == "json" else (),
        },
        nothing="the node owns no shards",
    )
    if found.missing:
        say(
            f"shardctl: shards {ranges.of(found.missing)} are missing on the nodes that "
            f"{topology.path.name} gives them to: run `shardctl verify --check map`"
        )
    for error in found.errors.values():
        say(f"shardctl: {error}")
    if found.errors:
        raise typer.Exit(3)


def _key(one: ShardLoad, sort: Sort) -> tuple[float | str, int]:
    """Order by a figure, the largest first and unknown ones last; equal ones by number."""
    if sort == "node":
        return one.node, one.shard
    figures = {"size": one.size_bytes, "rows": one.rows_estimate, "tps": one.operations_per_s}
    figure = 0 if sort == "shard" else figures[sort]
    return 1 if figure is None else -figure, one.shard


def _shown(one: ShardLoad) -> tuple[str, ...]:
    rates = (
        "-" if rate is None else f"{rate:,.1f}" for rate in (one.writes_per_s, one.scans_per_s)
    )
    size, rows = picture.size(one.size_bytes), picture.number(one.rows_estimate)
    moved = "-" if one.last_move is None else f"{one.last_move.astimezone(UTC):%Y-%m-%d %H:%M}"
    return f"{one.shard}", one.schema, one.node, size, rows, *rates, moved


def _fields(one: ShardLoad) -> tuple[str | None, ...]:
    return tuple(None if value is None else str(value) for value in one.as_json().values())
