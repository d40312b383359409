"""The tables of `status`: nodes, poolers, moves; and what could not be looked at."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from shardctl.cli import picture

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from rich.table import Table

    from shardctl.checks.status import Status
    from shardctl.checks.status_nodes import NodeStatus, Slot, Standby
    from shardctl.checks.status_poolers import PoolerStatus
    from shardctl.state.ledger import Entry

_NODES = ("node", "role", "version", "up", "shards", "size", "rows", "sessions", "tps", "disk")
_POOLERS = ("pooler", "state", "version", "clients", "waiting", "servers", "paused")
_MOVES = ("move", "state", "from", "to", "shards", "step", "by", "for", "can")
_RANGES = 3


def title(found: Status) -> str:
    """Give the first line: which cluster, which map, when."""
    version = "no map yet" if found.map_version is None else f"map version {found.map_version}"
    return f"cluster {found.cluster}, {version}, {found.time:%Y-%m-%d %H:%M:%S} UTC"


def unreached(found: Status) -> list[str]:
    """Say in a line each what could not be looked at, which are other servers, unknown disks."""
    told = [(n.state, f"{n.name} ({n.error})") for n in found.nodes if n.error]
    # A node without shards that is not there waits to be cloned onto: its row says so.
    missed = [text for state, text in told if state in {"down", "unreadable"}]
    others = [text for state, text in told if state == "up"]
    missed += [f"pooler {p.name} ({p.error})" for p in found.poolers if p.error]
    lines = [f"could not be reached: {', '.join(missed)}"] if missed else []
    lines += [f"not the node of the topology: {', '.join(others)}"] if others else []
    disks = [f"{n.name} ({n.disk_error})" for n in found.nodes if n.disk_error]
    return lines + ([f"disks that are not known: {', '.join(disks)}"] if disks else [])


def tables(found: Status) -> list[Table]:
    """Make a table of the nodes, of the poolers and of open moves where there are any."""
    made = [_nodes(found)]
    if found.poolers:
        made.append(_table(_POOLERS, map(_pooler_row, found.poolers)))
    if found.unclosed:
        made.append(_table(_MOVES, (_move_row(move, found.time) for move in found.unclosed)))
    return made


def _nodes(found: Status) -> Table:
    """Make a row for each node, and a column for replication where there is any."""
    replication = any(n.slots or n.standbys for n in found.nodes)
    header = (*_NODES, "replication") if replication else _NODES
    return _table(header, (_row(node)[: len(header)] for node in found.nodes))


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(*header, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _pooler_row(one: PoolerStatus) -> tuple[str, ...]:
    if one.error is not None:
        return one.name, "down", *["-"] * (len(_POOLERS) - 2)
    waiting = str(one.waiting)
    if one.waiting:
        waiting += f" (longest {one.longest_wait_s:.1f} s)"
    shown = ", ".join(one.paused[:_RANGES])
    more = f" and {len(one.paused) - _RANGES} more" if len(one.paused) > _RANGES else ""
    return (
        one.name, "up", one.version or "-", str(one.clients), waiting, str(one.servers),
        (shown + more) or "-",
    )  # fmt: skip


def _move_row(one: Entry, now: datetime) -> tuple[str, ...]:
    from shardctl.topology import ranges

    move = one.move
    listed = picture.shorten(
        ranges.of(move.shards),
        parts=_RANGES,
        ellipsis=picture.palette(sys.stdout.encoding).ellipsis,
    )
    return (
        move.id, one.state, move.source, move.target, f"{len(move.shards)}: {listed}",
        one.step or "-", move.who, picture.duration((now - move.started).total_seconds()),
        ", ".join(one.can()) or "-",
    )  # fmt: skip


def _row(node: NodeStatus) -> tuple[str, ...]:
    from shardctl.topology import ranges

    ellipsis = picture.palette(sys.stdout.encoding).ellipsis
    listed = picture.shorten(ranges.of(node.owned), parts=_RANGES, ellipsis=ellipsis)
    owned, live = len(node.owned), len(node.sizes)
    if not owned:
        shards = "none"
    elif node.state == "up" and live != owned:
        shards = f"{live} of {owned}: {listed}"
    else:
        shards = f"{owned}: {listed}"
    clients = "-" if node.sessions is None else str(node.sessions)
    if node.idle_in_transaction:
        clients += f" ({node.idle_in_transaction} idle in transaction)"
    disk = f"{picture.size(node.disk.free_bytes)} free" if node.disk else "-"
    replication = [_standby(s) for s in node.standbys] + [_slot(s) for s in node.slots]
    return (
        node.name,
        node.role or node.state.value,
        node.version or "-",
        picture.duration(node.uptime_s),
        shards,
        picture.size(node.size_bytes),
        picture.number(node.rows),
        clients,
        "-" if node.tps is None else f"{node.tps:.1f}",
        disk,
        "\n".join(replication),
    )


def _standby(one: Standby) -> str:
    lag = "lag unknown" if one.lag_bytes is None else f"{picture.size(one.lag_bytes)} behind"
    seconds = "" if one.lag_s is None else f", {one.lag_s:.1f} s"
    return f"standby {one.name}: {one.state or 'state unknown'}, {lag}{seconds}"


def _slot(one: Slot) -> str:
    does = "active" if one.active else "inactive"
    return f"{one.type} slot {one.name}: {does}, holds {picture.size(one.retained_bytes)} of WAL"
