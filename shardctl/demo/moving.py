"""The story: shards move to new nodes, one to a node that serves, while clients write."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.errors import Refused
from shardctl.moves import prune, service
from shardctl.moves.plan import Options
from shardctl.state import lock
from shardctl.topology import loader, ranges
from shardctl.traffic.load import Load

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.fanout import Progress
    from shardctl.topology.model import Topology
    from shardctl.traffic.client_routes import Aliases
    from shardctl.traffic.report import Report

MOVES = (("2-3", "c"), ("6-7", "d"), ("1", "b"))
"""Nodes c and d have no server before, so they are clones; node b serves, so its shard streams."""

CLIENTS = 8
RATE = 100.0
"""Operations a second per client: enough load for any laptop."""

LOGINS = 50.0
"""Additional logins a second, each with one operation, also while clients wait."""

_OPERATIONS = 800
"""Operations of the load before the first move, and after the last."""
_SECONDS = 60.0
_POLL = 0.05


def demo_failed(what: str) -> Refused:
    """Report an unexpected result of the tour."""
    return Refused(
        "demo_failed", f"the demo failed: {what}", hint="this is a bug; please report it"
    )


@dataclass(frozen=True, slots=True)
class Moved:
    """One move of the story; the pause in ms, None if it was not measured."""

    shards: str
    source: str
    target: str
    method: str
    pause_ms: float | None


@dataclass(frozen=True, slots=True)
class Story:
    """The moves, and the report of the load during them."""

    moves: tuple[Moved, ...]
    report: Report


def run(topology: Topology, progress: Progress, on_move: Callable[[Moved], None]) -> Story:
    """Move shards under load, and compare every row; raises demo_failed and what a move raises."""
    aliases: Aliases = "shard" if topology.poolers else "direct"
    with Load.start(topology, clients=CLIENTS, aliases=aliases, rate=RATE, logins=LOGINS) as load:
        _wait(load, _OPERATIONS)
        moves = []
        for shards, target in MOVES:
            moves.append(_move(loader.load(topology.path), shards, target, progress))
            on_move(moves[-1])
        _wait(load, load.ended + _OPERATIONS)
        report = load.check()
    wrong = {
        "errors": report.errors,
        "lost rows": report.lost,
        "duplicate rows": report.duplicates,
        "misplaced rows": report.misplaced,
        "unserved shards": len(report.unserved),
    }
    if any(wrong.values()) or not report.ok:
        found = ", ".join(f"{count} {what}" for what, count in wrong.items() if count)
        first = "; ".join(f"{f.code}: {f.first}" for f in report.failures)
        raise demo_failed(f"the load found {found or 'errors'} ({first})")
    return Story(tuple(moves), report)


def give_back(topology: Topology, progress: Progress) -> int:
    """Prune what the moves retired, and return the freed bytes; raises demo_failed."""
    purpose = lock.purpose(prune.COMMAND)
    found = prune.plan(
        topology, service.read(topology), accept_unconfirmed=False, now=True, purpose=purpose
    )
    kept = [one for one in found if one.why_not is not None]
    if kept or not found:
        why = f"{kept[0].schema}: {kept[0].why_not}" if kept else "it found no retired schemas"
        raise demo_failed(f"prune did not drop everything: {why}")
    prune.carry_out(topology, found, progress)
    return sum(one.size_bytes for one in found)


def _move(topology: Topology, text: str, target: str, progress: Progress) -> Moved:
    shards = [s for r in ranges.parse(text) for s in range(r.first, r.last + 1)]
    pause = topology.move.max_pause.total_seconds()
    options = Options(pause, 0, clone_with=topology.move.clone_with)
    decided, _ = service.choose(topology, shards, target, options)
    context = service.start(topology, decided, progress, lambda _: None)
    pause_ms = context.timeline.pause_ms
    return Moved(text, decided.source, decided.target, decided.method, pause_ms)


def _wait(load: Load, operations: int) -> None:
    """Wait until the load has done `operations` operations; raises demo_failed."""
    deadline = time.monotonic() + _SECONDS
    while load.ended < operations:
        if time.monotonic() > deadline:
            raise demo_failed(f"the load did {load.ended} operations in {_SECONDS:g} s")
        time.sleep(_POLL)
