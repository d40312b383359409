"""The tables of `status`: nodes, poolers, moves; and what could not be looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.cli import figures, moves_shown, picture
from shardctl.cli.tables import DROPS, fit
from shardctl.topology import ranges

if TYPE_CHECKING:
    from rich.console import RenderableType

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
    version = f"map version {found.map_version}"
    if found.map_version is None:
        version = "map unknown" if unserved(found) else "no map yet"
    return f"cluster {found.cluster}, {version}, {found.time:%Y-%m-%d %H:%M:%S} UTC"


def unserved(found: Status) -> list[NodeStatus]:
    """Return the nodes with shards that could not be read, or are another node."""
    return [one for one in found.nodes if one.owned and (one.state != "up" or one.error)]


def unreached(found: Status) -> list[str]:
    """Return a line each for what could not be looked at, or is not what the topology says."""
    reported = [(n.state, f"{n.name} ({n.error})") for n in found.nodes if n.error]
    # The row of a spare node that is down shows it already.
    missed = [text for state, text in reported if state in {"down", "unreadable"}]
    others = [text for state, text in reported if state == "up"]
    missed += [f"pooler {p.name} ({p.error})" for p in found.poolers if p.error]
    lines = [f"unreachable: {', '.join(missed)}"] if missed else []
    lines += [f"not the node in the topology: {', '.join(others)}"] if others else []
    if lost := unserved(found):
        shards = "; ".join(f"{ranges.of(one.owned)} of node {one.name}" for one in lost)
        lines.append(f"shards without a server: {shards}")
    lines += [
        f"the pause on pooler {p.name} waits for open transactions: {', '.join(p.waits_for)}"
        for p in found.poolers
        if p.waits_for
    ]
    if found.stale:
        lines.append(f"old topology (use the newest file): {'; '.join(found.stale)}")
    older = [n.name for n in found.nodes if 0 < (n.map_version or 0) < (found.map_version or 0)]
    lines += [f"older map (run `shardctl init`): {', '.join(older)}"] if older else []
    disks = [f"{n.name} ({n.disk_error})" for n in found.nodes if n.disk_error]
    return lines + ([f"free disk space unknown: {', '.join(disks)}"] if disks else [])


def tables(found: Status, width: int) -> list[RenderableType]:
    """Make a table of the nodes, of the poolers and of open moves where there are any."""
    made = [_nodes(found, width)]
    if found.poolers:
        made.append(fit(_POOLERS, map(_pooler_row, found.poolers), width, drops=DROPS))
    if found.unclosed:
        rows = (_move_row(found, move) for move in found.unclosed)
        made.append(fit(_MOVES, rows, width, drops=DROPS))
    return made


def _nodes(found: Status, width: int) -> RenderableType:
    """Make a row for each node, and a column for replication where there is any."""
    replication = any(n.slots or n.standbys for n in found.nodes)
    header = (*_NODES, "replication") if replication else _NODES
    rows = (_row(node)[: len(header)] for node in found.nodes)
    return fit(header, rows, width, drops=DROPS)


def _pooler_row(one: PoolerStatus) -> tuple[str, ...]:
    if one.error is not None:
        return one.name, "down", *["-"] * (len(_POOLERS) - 2)
    waiting = f"{one.waiting:,}"
    if one.waiting:
        waiting += f" (longest {one.longest_wait_s:.1f} s)"
    shown = ", ".join(one.paused[:_RANGES])
    more = f" and {len(one.paused) - _RANGES:,} more" if len(one.paused) > _RANGES else ""
    return (
        one.name, "up", one.version or "-", f"{one.clients:,}", waiting, f"{one.servers:,}",
        (shown + more) or "-",
    )  # fmt: skip


def _move_row(found: Status, one: Entry) -> tuple[str, ...]:
    move, slot = one.move, found.slot_of(one)
    step = one.step or "-"
    if slot is not None and slot.lag_bytes is not None:
        held = picture.size(slot.retained_bytes)
        step += f"\n{picture.size(slot.lag_bytes)} behind, holds {held} of WAL"
    listed = picture.shorten(
        ranges.of(move.shards),
        parts=_RANGES,
    )
    if one.progress is not None:
        step += f"\n{figures.copied(one.progress, found.time)}"
    if one.reverse is not None and (reversible := moves_shown.reverse(one)):
        step += f"\n{reversible}"
    return (
        move.id, one.state, move.source, move.target, f"{len(move.shards):,}: {listed}",
        step, move.who, picture.duration((found.time - move.started).total_seconds()),
        ", ".join(one.can()) or "-",
    )  # fmt: skip


def _row(node: NodeStatus) -> tuple[str, ...]:
    listed = picture.shorten(ranges.of(node.owned), parts=_RANGES)
    owned, live = len(node.owned), len(node.sizes)
    if not owned:
        shards = "none"
    elif node.state == "up" and live != owned:
        shards = f"{live:,} of {owned:,}: {listed}"
    else:
        shards = f"{owned:,}: {listed}"
    clients = "-" if node.sessions is None else f"{node.sessions:,}"
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
