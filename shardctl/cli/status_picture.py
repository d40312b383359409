"""The picture of `status`: bars of sizes, what is read-only, what waits for prune."""

from __future__ import annotations

from collections import Counter
from datetime import UTC
from typing import TYPE_CHECKING

from shardctl.cli import picture

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from shardctl.checks.status import Status
    from shardctl.checks.status_nodes import Retired
    from shardctl.state.ledger import Entry

_BAR = 40


def draw(found: Status) -> list[str]:
    """Draw a bar for each node, then list what is read-only and what is retired."""
    seen = [node for node in found.nodes if node.size_bytes is not None]
    indent = max((len(node.name) for node in seen), default=0) + 1
    most = max((node.size_bytes or 0 for node in seen), default=0)
    lines = []
    for node in seen:
        drawn = picture.bar(node.size_bytes or 0, most, width=_BAR)
        lines.append(f"{node.name:<{indent}}{drawn} {picture.size(node.size_bytes)}")
    sizes = [(size, shard) for n in seen for shard, size in n.sizes.items() if size is not None]
    if sizes:
        size, shard = max(sizes)
        lines.append(f"the largest shard is {shard}: {picture.size(size)}")
    refusing = sum(len(node.read_only) for node in found.nodes)
    if refusing:
        lines += ["", f"read-only shards: {refusing:,}", *_read_only(found)]
    count = sum(len(node.retired) for node in found.nodes)
    if count:
        lines += ["", f"retired schemas: {count:,}", *_retired(found)]
    return lines


def _read_only(found: Status) -> Iterator[str]:
    """Tell which shards of which nodes refuse writes, since when and by whom."""
    from shardctl.topology import ranges

    for node in found.nodes:
        for mark, shards in node.read_only_alike().items():
            since = (
                f" since {mark.since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if mark.since else ""
            )
            part = "" if mark.whole else f", only {mark.refusing:,} of {mark.tables:,} tables"
            yield f"  {node.name}: {picture.shorten(ranges.of(shards))}{since}, by {mark.by}{part}"


def _retired(found: Status) -> Iterator[str]:
    """Report what prune will do about the retired schemas, a line for each move.

    Schemas without a move in any journal are listed one by one.
    """
    moves = {one.move.id: one for one in found.moves}
    groups: dict[str, list[tuple[str, Retired]]] = {}
    for node in found.nodes:
        for one in node.retired:
            if one.move in moves:
                groups.setdefault(one.move, []).append((node.name, one))
            else:
                yield f"  {node.name}: {one.schema}, {picture.size(one.size_bytes)}"
    for move, schemas in groups.items():
        counts = Counter(name for name, _ in schemas)
        where = ", ".join(f"{count:,} on {name}" for name, count in counts.items())
        sizes = [one.size_bytes for _, one in schemas if one.size_bytes is not None]
        size = picture.size(sum(sizes)) if sizes else "of unknown size"
        yield f"  move {move}: {where}, {size}, {_when(moves[move], found.time)}"


def _when(entry: Entry, now: datetime) -> str:
    if entry.due is None:
        differ = ", and its copies differ" if entry.move.proof == "differs" else ""
        return f"which is {entry.state}{differ}"
    ended = entry.move.ended or entry.move.changed
    age = f"ended {picture.duration((now - ended).total_seconds())} ago"
    if now < entry.due:
        return f"{age}, kept until {entry.due.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    accept = " --accept-unconfirmed" if entry.state == "unconfirmed" else ""
    return f"{age}, due: `shardctl prune{accept}`"
