"""What aliases cost in PgBouncer: RELOAD with few and many, memory, and each request."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.bench import clients, fleet, pooling
from tests.bench.measure import Row, alternate, compare, per, say, timed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from shardctl.pgbouncer.console import Console
    from tests.bench.clients import Window
    from tests.bench.measure import Scale, Side
    from tests.bench.pooling import Pooled

    Connection = psycopg.Connection[Any]

_WATCHED = 0.5
"""Seconds. PgBouncer closes connections to former addresses up to 0.33 s after RELOAD."""


@dataclass(frozen=True, slots=True)
class Reloads:
    """What was seen at RELOADs of one kind, a value a round."""

    versions: list[float] = field(default_factory=list)
    usual: list[Window] = field(default_factory=list)
    reloading: list[Window] = field(default_factory=list)
    ran: list[float] = field(default_factory=list)
    """Seconds of a core that RELOAD itself took."""
    held_up: list[float] = field(default_factory=list)
    """Seconds that the pooler waited for a core, beyond what it usually does."""


def reload(scale: Scale) -> list[Row]:
    """Time RELOAD with 8, 1,000 and 8,192 shard aliases, and how long a client of another waits.

    Fair: the files are shardctl's own, `connect_query` and all, each size in a PgBouncer that
    was just started. A client of a node's alias, which never changes, asks `SELECT 1` in a
    tight loop. Its longest wait is that of the 0.5 s from RELOAD on, beside that of the 0.5 s
    before. "All moved" gives every shard the other server's address. The connections to the
    former one are closed within those 0.5 s. Aliases "in use" have a client and a connection
    to the server each.

    The reference is the console's shortest answer, `SHOW VERSION`, in the same round.

    Servers and pooler share the machine. A connection that is closed ends a process of the
    server, so the pooler waits for a core where it would have had one of its own; a note says
    how long.
    """
    rows: list[Row] = []
    memory: dict[str, float] = {}
    sizes = (8, scale.of(pooling.IN_USE, 16), scale.of(8_192, 32))
    with fleet.running(2) as running:
        pooling.prepare(running, sizes[1] + pooling.SPARE)
        for shards in sizes:
            say(f"  {shards} aliases")
            with pooling.pooled(running, shards) as pooled, ExitStack() as stack:
                memory[f"{shards:,} aliases"] = pooled.memory()
                rows += _reloads(pooled, [], scale)
                if shards != sizes[-1]:
                    users = [stack.enter_context(pooled.connect(a)) for a in pooled.aliases]
                    rows += _reloads(pooled, users, scale)
                    memory[f"{shards:,} aliases in use"] = pooled.memory()
    (fewest, least), *others = memory.items()
    shown = "{:.1f} MB".format
    for what, more in others:
        name = f"PgBouncer's memory, {what}"
        rows.append(compare(name, [more], [least], against=fewest, shown=shown))
    return rows


def _reloads(pooled: Pooled, users: Sequence[Connection], scale: Scale) -> list[Row]:
    """Time both kinds of RELOAD."""
    kinds = {"nothing changed": Reloads(), "all moved": Reloads()}
    with (
        pooled.console() as console,
        clients.working(pooled.pooler, [pooled.another], clients.SHORT) as client,
    ):
        sides = {
            kind: _reload(pooled, console, users, seen, moved=kind == "all moved")
            for kind, seen in kinds.items()
        }
        times = alternate(sides, scale.of(4, 1))
        waits = client.end()
    count = len(pooled.aliases)
    what = f"{count:,} aliases{' in use' if users else ''}"
    rows: list[Row] = []
    for kind, seen in kinds.items():
        stalled, usual = ([waits.longest(w) for w in ws] for ws in (seen.reloading, seen.usual))
        rows += [
            compare(
                f"RELOAD, {what}, {kind}",
                times[kind],
                seen.versions,
                against="SHOW VERSION",
                shown=pooling.milliseconds,
                note=f"pooler ran {per(count, 'alias')(statistics.median(seen.ran))}",
            ),
            compare(
                "  another alias' client: longest wait",
                stalled,
                usual,
                against="without",
                shown=pooling.milliseconds,
                note=f"pooler waited {pooling.median(seen.held_up)} for a core",
            ),
        ]
    return rows


def _reload(
    pooled: Pooled, console: Console, users: Sequence[Connection], seen: Reloads, *, moved: bool
) -> Side:
    once = timed(console.version)

    def side() -> float:
        clients.use(users)
        seen.versions.append(statistics.median(once() for _ in range(21)))
        _, waited = pooled.scheduled()
        began = time.perf_counter()
        time.sleep(_WATCHED)  # the client is at work; nothing is waited for
        seen.usual.append((began, time.perf_counter()))
        usually = pooled.scheduled()[1] - waited
        if moved:
            pooled.exchange()
        pooled.offer()
        ran, waited = pooled.scheduled()
        began = time.perf_counter()
        console.reload()
        took = time.perf_counter() - began
        seen.ran.append(pooled.scheduled()[0] - ran)
        time.sleep(max(0.0, _WATCHED - took))
        seen.reloading.append((began, time.perf_counter()))
        offered = console.databases()
        seen.held_up.append(max(0.0, pooled.scheduled()[1] - waited - usually))
        if any(offered[entry.alias].port != entry.port for entry in pooled.entries()):
            raise RuntimeError("RELOAD took no effect")
        return took

    return side
