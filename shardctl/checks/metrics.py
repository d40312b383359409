"""The fleet's figures for Prometheus, from what `status` sees and the last `verify` found.

The text format is 0.0.4 (https://prometheus.io/docs/instrumenting/exposition_formats/), and names
follow https://prometheus.io/docs/practices/naming/: base units, and the Unix time of a moment in
place of the time since.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from shardctl import fanout
from shardctl.checks import status
from shardctl.checks.check import Severity
from shardctl.errors import Refused
from shardctl.fanout import Silent
from shardctl.hosts import files
from shardctl.hosts.reach import host_of
from shardctl.ids.layout import Layout
from shardctl.pgbouncer import render as pooler_files
from shardctl.state.ledger import Shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from shardctl.checks.status import NodeStatus, PoolerStatus, Status
    from shardctl.checks.verify import Report
    from shardctl.state.ledger import Entry
    from shardctl.topology.model import Pooler, Topology

Sample = tuple[str, "Mapping[str, str]", "float | None"]
"""A metric's name without its prefix, its labels, and its value; None leaves the sample out."""

HELP = {
    "node_up": "1 if the node answered and is the node of the topology, 0 if not.",
    "node_shards": "Shards that the topology gives to the node.",
    "node_database_bytes": "Size of the cluster's database on the node.",
    "node_map_version": "Version of the map on the node; 0 until init has finished.",
    "map_version": "Newest version of the map on any node.",
    "slot_active": "1 if a client uses the replication slot, 0 if not.",
    "slot_wal_bytes": "WAL that the replication slot holds back.",
    "slot_lag_bytes": "WAL that the subscriber of the logical slot has not confirmed.",
    "standby_lag_bytes": "WAL that the standby has not replayed.",
    "standby_lag_seconds": "Replay lag of the standby, as its primary reports it.",
    "moves": "Moves in the journals, by state.",
    "move_start_timestamp_seconds": "When the open move began.",
    "move_progress_timestamp_seconds": "When the open move last made progress.",
    "move_wal_bytes": "WAL that the node keeps for the move, or for its reverse.",
    "move_wal_limit_bytes": "WAL at which the node drops the slot of the move, or of its reverse.",
    "retired_schemas": "Schemas that the move has retired on the node.",
    "retired_bytes": "Size of the schemas that the move has retired on the node.",
    "retired_due_timestamp_seconds": "From when on prune may drop the move's retired schemas.",
    "pooler_up": "1 if the pooler's console could be used, 0 if not.",
    "pooler_clients": "Clients connected to the pooler.",
    "pooler_waiting_clients": "Clients that wait for a server connection.",
    "pooler_wait_seconds": "Longest wait of a client so far.",
    "pooler_paused_databases": "Paused databases of the pooler.",
    "pooler_map_version": "Version of the map in the pooler's file of aliases.",
    "verify_findings": "Findings of the last verify, by check and severity.",
    "verify_timestamp_seconds": "When the last verify ended.",
    "ids_end_timestamp_seconds": "When ids of the layout run out.",
}
"""Every metric, in the order of the output; all are gauges."""


def read(topology: Topology) -> str:
    """Look at the fleet, and give its metrics."""
    found = status.observe(topology, sample_s=0, progress=Silent(), whole=False)
    samples = [*of_status(topology, found), *_of_pooler_files(topology)]
    return render(topology.cluster, samples)


def of_verify(report: Report) -> str:
    """Give the metrics of a `verify` that has just ended."""
    counts = Counter((one.check, one.severity) for one in report.findings)
    samples: list[Sample] = [
        ("verify_findings", {"check": check, "severity": severity.value}, counts[check, severity])
        for check in report.checks
        for severity in Severity
    ]
    return render(report.cluster, [*samples, ("verify_timestamp_seconds", {}, round(time.time()))])


def render(cluster: str, samples: Iterable[Sample]) -> str:
    """Write the metrics; of two samples with the same labels, the larger one counts."""
    families: dict[str, dict[str, float]] = {name: {} for name in HELP}
    for name, labels, value in samples:
        if value is not None:
            named = {"cluster": cluster, **labels}
            key = ",".join(f'{label}="{_escaped(text)}"' for label, text in named.items())
            families[name][key] = max(value, families[name].get(key, value))
    lines = []
    for name, values in families.items():
        if values:
            lines.append(f"# HELP shardctl_{name} {HELP[name]}")
            lines.append(f"# TYPE shardctl_{name} gauge")
        lines += [f"shardctl_{name}{{{key}}} {value}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def file_of(directory: Path, cluster: str) -> Path:
    """Name the cluster's file in a directory of metrics."""
    return directory / f"shardctl-{re.sub(r'[^A-Za-z0-9_.-]', '_', cluster)}.prom"


def write(file: Path, text: str) -> None:
    """Replace a file for node_exporter's textfile collector, at once; raises metrics_unwritten."""
    try:
        with tempfile.TemporaryDirectory(prefix=".shardctl-", dir=file.parent) as made:
            new = Path(made, file.name)
            new.write_text(text, encoding="utf-8")
            new.chmod(0o644)  # node_exporter has a user of its own
            new.replace(file)
    except OSError as error:
        raise Refused(
            "metrics_unwritten",
            f"{file}: cannot write the metrics: {error.strerror or error}",
            hint="create the directory, free disk space, or let this user write there",
        ) from error


def _escaped(text: str) -> str:
    r"""Escape a label's value.

    >>> print(_escaped('a"b\\c'))
    a\"b\\c
    """
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def of_status(topology: Topology, found: Status) -> Iterator[Sample]:
    """Give the samples of what `status` has seen."""
    for node in found.nodes:
        yield from _of_node(node)
    yield "map_version", {}, found.map_version
    states = Counter(one.state for one in found.moves)
    yield from (("moves", {"state": state}, states[state]) for state in get_args(Shown))
    for move in found.unclosed:
        yield from _of_move(found, move)
    for pooler in found.poolers:
        yield from _of_pooler(pooler)
    yield "ids_end_timestamp_seconds", {}, Layout.of(topology.id).last_ms / 1000


def _of_node(node: NodeStatus) -> Iterator[Sample]:
    of = {"node": node.name}
    yield "node_up", of, int(node.state == "up" and node.error is None)
    yield "node_shards", of, len(node.owned)
    yield "node_database_bytes", of, node.size_bytes
    yield "node_map_version", of, node.map_version
    for slot in node.slots:
        of_slot = {**of, "slot": slot.name, "type": slot.type}
        yield "slot_active", of_slot, int(slot.active)
        yield "slot_wal_bytes", of_slot, slot.retained_bytes
        yield "slot_lag_bytes", of_slot, slot.lag_bytes
    for standby in node.standbys:
        of_standby = {**of, "standby": standby.name}
        yield "standby_lag_bytes", of_standby, standby.lag_bytes
        yield "standby_lag_seconds", of_standby, standby.lag_s
    for move, schemas in Counter(one.move for one in node.retired).items():
        of_move = {**of, "move": move}
        retired = [one for one in node.retired if one.move == move]
        yield "retired_schemas", of_move, schemas
        yield "retired_bytes", of_move, sum(one.size_bytes or 0 for one in retired)
        yield "retired_due_timestamp_seconds", of_move, _seconds(retired[0].due)


def _of_move(found: Status, one: Entry) -> Iterator[Sample]:
    move, reverse = one.move, one.reverse
    if one.open:
        labels = {"move": move.id, "state": one.state, "method": move.method}
        labels |= {"source": move.source, "target": move.target}
        moments = [move.changed, *(step.started for step in one.steps)]
        moments += [one.progress.at] if one.progress else []
        yield "move_start_timestamp_seconds", labels, _seconds(move.started)
        yield "move_progress_timestamp_seconds", labels, _seconds(max(moments))
        if (slot := found.slot_of(one)) is not None:
            kept = {"move": move.id, "node": move.source, "purpose": "move"}
            yield "move_wal_bytes", kept, slot.retained_bytes
            yield "move_wal_limit_bytes", kept, move.plan["options"].get("max_wal_bytes")
    if reverse is not None and reverse.held_bytes is not None:
        kept = {"move": move.id, "node": move.target, "purpose": "reverse"}
        yield "move_wal_bytes", kept, reverse.held_bytes
        yield "move_wal_limit_bytes", kept, reverse.limit_bytes


def _of_pooler(pooler: PoolerStatus) -> Iterator[Sample]:
    of = {"pooler": pooler.name}
    yield "pooler_up", of, int(pooler.error is None)
    if pooler.error is None:
        yield "pooler_clients", of, pooler.clients
        yield "pooler_waiting_clients", of, pooler.waiting
        yield "pooler_wait_seconds", of, (pooler.longest_wait_ms or 0.0) / 1000
        yield "pooler_paused_databases", of, len(pooler.paused)


def _of_pooler_files(topology: Topology) -> Iterator[Sample]:
    """Read the map versions in the poolers' files; of one that cannot be read there is none."""

    def version(pooler: Pooler) -> int | None:
        text = files.read(host_of(pooler), pooler.databases_file, user=pooler.os_user)
        head = pooler_files.header(text or "")
        return head.map_version if head and head.cluster == topology.cluster else None

    for pooler, found in fanout.collect(topology.poolers.values(), version).values:
        yield "pooler_map_version", {"pooler": pooler.name}, found


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else round(moment.timestamp(), 3)
