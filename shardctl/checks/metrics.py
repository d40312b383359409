"""What `metrics` shows of a fleet: every metric, with its name, its meaning and its samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from shardctl.checks import exposition
from shardctl.checks.exposition import Gauge
from shardctl.checks.status_nodes import State
from shardctl.ids.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from shardctl.checks.last_verify import LastVerify
    from shardctl.checks.status import Status
    from shardctl.checks.status_nodes import NodeStatus
    from shardctl.state.ledger import Entry
    from shardctl.topology.model import IdSettings, PoolerName

PREFIX = "shardctl_"
_STATES = ("running", "unfinished", "unconfirmed", "done", "aborted")


@dataclass(frozen=True, slots=True)
class Scrape:
    """All that `metrics` has seen; `status` is the fleet at the moment at which it began.

    `pooler_maps` has the map version of each pooler's file that could be read. `verified` is the
    last run of `verify`, None where none was recorded.
    """

    status: Status
    ids: IdSettings
    pooler_maps: Mapping[PoolerName, int] = field(default_factory=dict)
    verified: LastVerify | None = None
    duration_s: float = 0.0


def render(scrape: Scrape) -> str:
    """Write all metrics in the text format 0.0.4; those without a value are left out."""
    labels = {"cluster": scrape.status.cluster}
    return exposition.render(gauges(scrape), prefix=PREFIX, labels=labels)


def gauges(scrape: Scrape) -> Iterator[Gauge]:
    """Give every metric, also those without a sample."""
    yield from _nodes(scrape.status.nodes)
    yield from _replication(scrape.status.nodes)
    yield from _poolers(scrape)
    yield from _moves(scrape.status)
    yield from _ids(scrape)
    yield from _verified(scrape)
    yield from _itself(scrape)


def _nodes(nodes: Iterable[NodeStatus]) -> Iterator[Gauge]:
    up = Gauge("node_up", "Whether the node answers every question and is the topology's node.")
    owned = Gauge("node_shards", "Shards that the topology gives to the node.")
    present = Gauge("node_shards_present", "Shards of the node whose schema exists on it.")
    size = Gauge("node_database_bytes", "Size of the cluster's database on the node.")
    standby = Gauge("node_in_recovery", "Whether the node is a standby.")
    version = Gauge("node_map_version", "Version of the map on the node.")
    retired = Gauge("node_retired_schemas", "Retired schemas on the node.")
    bytes_retired = Gauge("node_retired_bytes", "Size of the retired schemas on the node.")
    for node in nodes:
        up.add(node.state is State.up and node.error is None, node=node.name)
        owned.add(len(node.owned), node=node.name)
        if node.state is State.up:
            present.add(len(node.sizes), node=node.name)
            size.add(node.size_bytes, node=node.name)
            standby.add(node.role == "standby", node=node.name)
            version.add(node.map_version, node=node.name)
            retired.add(len(node.retired), node=node.name)
            bytes_retired.add(sum(one.size_bytes or 0 for one in node.retired), node=node.name)
    yield from (up, owned, present, size, standby, version, retired, bytes_retired)


def _replication(nodes: Iterable[NodeStatus]) -> Iterator[Gauge]:
    lag = Gauge("standby_lag_bytes", "WAL that the standby has still to replay.")
    lag_s = Gauge("standby_lag_seconds", "Replay lag that the server reports for the standby.")
    active = Gauge("slot_active", "Whether a client reads from the replication slot.")
    lost = Gauge("slot_lost", "Whether the server has removed WAL that the slot needs.")
    held = Gauge("slot_wal_bytes", "WAL that the server keeps for the replication slot.")
    safe = Gauge("slot_wal_left_bytes", "WAL until the slot is lost; none without a limit.")
    behind = Gauge("slot_lag_bytes", "WAL that the subscriber of the slot has not confirmed.")
    for node in nodes:
        for standby in node.standbys:
            lag.add(standby.lag_bytes, node=node.name, standby=standby.name or "")
            lag_s.add(standby.lag_s, node=node.name, standby=standby.name or "")
        for slot in node.slots:
            named = {"node": node.name, "slot": slot.name, "type": slot.type}
            active.add(slot.active, **named)
            lost.add(slot.wal_status == "lost", **named)
            held.add(slot.retained_bytes, **named)
            safe.add(slot.safe_bytes, **named)
            behind.add(slot.lag_bytes, **named)
    yield from (lag, lag_s, active, lost, held, safe, behind)


def _poolers(scrape: Scrape) -> Iterator[Gauge]:
    up = Gauge("pooler_up", "Whether the pooler's console answers.")
    version = Gauge("pooler_map_version", "Version of the map in the pooler's file of aliases.")
    clients = Gauge("pooler_clients", "Clients that are connected to the pooler.")
    waiting = Gauge("pooler_waiting_clients", "Clients that wait for a connection to a server.")
    longest = Gauge("pooler_maxwait_seconds", "Longest time that a client is waiting now.")
    servers = Gauge("pooler_servers", "Connections of the pooler to servers.")
    paused = Gauge("pooler_paused_databases", "Databases of the pooler that are paused.")
    for pooler in scrape.status.poolers:
        up.add(pooler.error is None, pooler=pooler.name)
        version.add(scrape.pooler_maps.get(pooler.name), pooler=pooler.name)
        if pooler.error is None:
            clients.add(pooler.clients, pooler=pooler.name)
            waiting.add(pooler.waiting, pooler=pooler.name)
            longest.add(pooler.longest_wait_s, pooler=pooler.name)
            servers.add(pooler.servers, pooler=pooler.name)
            paused.add(len(pooler.paused), pooler=pooler.name)
    yield from (up, version, clients, waiting, longest, servers, paused)


def _moves(status: Status) -> Iterator[Gauge]:
    counted = Gauge("moves", "Moves in the journals of the nodes, by state.")
    age = Gauge(
        "move_progress_age_seconds",
        "Time since an unfinished move last made progress; since its step began while it stalls.",
    )
    copied = Gauge("move_copied_bytes", "Bytes that the unfinished move has copied.")
    total = Gauge("move_total_bytes", "Bytes that the unfinished move has to copy.")
    held = Gauge("move_wal_bytes", "WAL that the source keeps for the unfinished move.")
    limit = Gauge("move_wal_limit_bytes", "WAL that the source keeps for the move at most.")
    known = any(node.state is State.up for node in status.nodes)
    for state in _STATES if known else ():
        counted.add(sum(move.state == state for move in status.moves), state=state)
    for move in status.moves:
        if not move.open:
            continue
        named = {"move": move.move.id, "source": move.move.source, "target": move.move.target}
        age.add(max(0.0, (status.time - progressed(move)).total_seconds()), **named)
        if (progress := move.progress) is not None:
            copied.add(progress.bytes, **named)
            total.add(progress.total, **named)
            held.add(progress.wal, **named)
            limit.add(progress.wal_limit, **named)
    yield from (counted, age, copied, total, held, limit)


def progressed(move: Entry) -> datetime:
    """Give when a move last made progress, as its journal and its copy's figures have it.

    The figures are written while the copy stalls, too; they count only while they have a rate.
    """
    moments = [move.move.started, move.move.changed]
    moments += [one.started + timedelta(milliseconds=one.took_ms or 0) for one in move.steps]
    if move.progress is not None and move.progress.rate:
        moments.append(move.progress.at)
    return max(moments)


def _ids(scrape: Scrape) -> Iterator[Gauge]:
    left = Gauge("ids_left_seconds", "Time until the cluster's layout of ids has no more ids.")
    last_s = Layout.of(scrape.ids).last_ms / 1000
    left.add(last_s - scrape.status.time.timestamp())
    yield left


def _verified(scrape: Scrape) -> Iterator[Gauge]:
    found = Gauge("verify_findings", "Findings of the last complete `shardctl verify`.")
    age = Gauge("verify_age_seconds", "Time since the last complete `shardctl verify`.")
    if (last := scrape.verified) is not None:
        for severity, count in last.counts.items():
            found.add(count, severity=severity)
        age.add(max(0.0, scrape.status.time.timestamp() - last.at))
    yield from (found, age)


def _itself(scrape: Scrape) -> Iterator[Gauge]:
    took = Gauge("scrape_duration_seconds", "How long `shardctl metrics` took to read the fleet.")
    took.add(round(scrape.duration_s, 6))
    at = Gauge("scrape_timestamp_seconds", "When `shardctl metrics` read the fleet, in Unix time.")
    at.add(round(scrape.status.time.timestamp(), 3))
    yield from (took, at)
