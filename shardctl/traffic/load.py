"""The load: clients that run while the fleet changes, then the check of every row."""

from __future__ import annotations

import logging
import math
import threading
import time
from contextlib import ExitStack
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Self

from shardctl.errors import Refused
from shardctl.topology import ranges
from shardctl.traffic import fleet, proof, report, table
from shardctl.traffic.client import Client, Course
from shardctl.traffic.client_routes import ClientRoute
from shardctl.traffic.logins import Logins
from shardctl.traffic.operations import FENCED_S, open_router
from shardctl.traffic.proof import FleetUnsettled

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from shardctl.topology.model import NodeName, ShardId, Topology
    from shardctl.traffic.client_routes import Aliases
    from shardctl.traffic.fleet import Fleet
    from shardctl.traffic.proof import Verdict
    from shardctl.traffic.record import Record
    from shardctl.traffic.report import Report, Spread


def plan(
    topology: Topology, aliases: Aliases, shards: Collection[ShardId] | None = None
) -> tuple[Fleet, ClientRoute]:
    """Check whether a load on all or these shards can run; changes nothing.

    Raises no_such_aliases, map_unwritten, owner_unknown, NodeUnavailable, shards_unserved and
    table_taken.
    """
    route = ClientRoute.of(topology, aliases)
    found = fleet.look(topology)
    chosen = frozenset(found.owners if shards is None else shards)
    if unserved := found.unserved() & chosen:
        raise Refused(
            "shards_unserved",
            f"shards {ranges.of(unserved)} are not live on the nodes that own them",
            hint="run `shardctl verify`; finish or abort an unfinished move first",
        )
    table.require_free(topology, found)
    return found, route


def shares(shards: Sequence[ShardId], clients: int) -> list[list[ShardId]]:
    """Give every client its own shards, in runs, because moves take runs, too.

    With fewer shards than clients, each gets one, and some share it.

    >>> shares([0, 1, 2, 3, 4], 2), shares([0, 1], 3)
    ([[0, 1], [2, 3, 4]], [[0], [1], [0]])
    """
    count = len(shards)
    if count < clients:
        return [[shards[number % count]] for number in range(clients)]
    bounds = [number * count // clients for number in range(clients + 1)]
    return [list(shards[first:last]) for first, last in pairwise(bounds)]


logger = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""How long clients may take to finish their last operation."""

_WARM_UP_S = 15.0
_EVERY_S = 0.005
_LOOK_AGAIN_S = 0.05
_LAST_S = 0.5


class Load:
    """A load that runs until its time is over or `stop`.

    Use it in a `with`, whose end drops the table (unless kept), or call `close`. Before that,
    `check` may be called repeatedly.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        clients: int = 8,
        aliases: Aliases = "shard",
        seconds: float | None = None,
        rate: float | None = None,
        logins: float | None = None,
        shards: Collection[ShardId] | None = None,
        keep_table: bool = False,
    ) -> None:
        """Create the table in every shard, or in these, and start the clients.

        `seconds` None runs until `stop`. `rate` is each client's, in operations a second; None is
        without a limit. `logins` adds so many logins a second with one operation each; then there
        may be no clients. Memory grows with the load: see Record. Raises what `plan` raises,
        load_running, table_failed and load_stuck.
        """
        found, route = plan(topology, aliases, shards)
        self._topology = topology
        self._first = found.owners
        self._shards = sorted(found.owners if shards is None else shards)
        self._router = None if aliases == "shard" else open_router(route, clients)
        self._course = Course(
            route,
            router=None if route.by_map else self._router,
            map=self._router if route.by_map else None,
            statements=cache(route.statements),
            interval=1 / rate if rate else 0.0,
        )
        self._late_s = 0.0
        parts = shares(self._shards, clients) if clients else []
        self._all: list[Client] = [
            Client(number, part, self._course) for number, part in enumerate(parts)
        ]
        self._clients = clients
        self._logins: Logins | None = None
        if logins is not None:
            self._logins = Logins(clients, self._shards, self._course, rate=logins)
            self._all.append(self._logins)
        self.left: list[NodeName] = []
        """Unreachable owners at `close`: the table may still exist there."""
        self._cleaning = self._prepare(found, keep_table=keep_table)
        try:
            self._begin(seconds)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def watch(self) -> Iterator[Spread]:
        """Yield the latencies of every second, until the last client has ended.

        Clients get PATIENCE_S after the end of the load; then `stop` aborts them.
        """
        firsts = [0] * len(self._all)
        due = self._course.began + 1
        while True:
            # The last operations count for the last second, though they end a little later.
            late = _LAST_S if due >= self._course.ends else 0.0
            over = self._join(due + late - time.perf_counter())
            reached = [len(record.ended) for record in self._records]
            if not over or reached != firsts:
                yield report.spread(self._records, firsts, reached)
            if over or due > self._course.ends + PATIENCE_S:
                return
            firsts, due = reached, due + 1

    @property
    def ended(self) -> int:
        """The number of operations that have ended."""
        return sum(len(record.ended) for record in self._records)

    def stop(self, *, patience_s: float = PATIENCE_S) -> None:
        """End every client after its current operation.

        Operations without an answer `patience_s` after the load's end, or after this call, are
        aborted and count as lost connections.
        """
        self._course.stop.set()
        self._course.go.set()  # they may still be waiting for the start
        now = time.perf_counter()
        over = self._join(min(now, self._course.ends) + patience_s - now)
        while not over:
            for client in self._all:
                client.cut()
            over = self._join(1.0)
        if self._router is not None:
            self._router.close()
        for client in self._all:
            if client.failure is not None:
                raise client.failure

    def check(self) -> Report:
        """Stop the load, and compare every row with what was acknowledged.

        Waits some seconds for shards that no node serves, as in a cutover. Raises
        NodeUnavailable for an unreachable node that owns shards, and FleetUnsettled.
        """
        self.stop()
        deadline = time.monotonic() + FENCED_S
        while True:
            found = fleet.look(self._topology)
            late = time.monotonic() > deadline
            if late or not found.unserved():
                try:
                    return self._report(found, proof.judge(self._topology, found, self._records))
                except FleetUnsettled:
                    if late:
                        raise
            # The fleet does not announce changes, so poll.
            time.sleep(_LOOK_AGAIN_S)

    def close(self) -> None:
        """Stop, if needed, and drop the table; raises table_failed."""
        with self._cleaning:
            self.stop()

    @property
    def _records(self) -> list[Record]:
        return [client.record for client in self._all]

    def _prepare(self, found: Fleet, *, keep_table: bool) -> ExitStack:
        """Create the table; give its removal, for `close`."""
        with ExitStack() as cleaning:
            owning = [name for name in self._topology.nodes if found.holding(name)]
            cleaning.enter_context(table.alone(self._topology, owning))
            if not keep_table:
                cleaning.callback(self._drop)
            table.make(self._topology, found, self._shards)
            return cleaning.pop_all()

    def _begin(self, seconds: float | None) -> None:
        """Start the clients together, once all have their connections; raises load_stuck."""
        if self._course.map is not None:
            self._course.map.read_map()
        for client in self._all:
            client.warm_up()
        deadline = time.monotonic() + _WARM_UP_S
        late = [c for c in self._all if not c.is_warm(max(0.0, deadline - time.monotonic()))]
        threading.Thread(target=self._beat, daemon=True, name="heartbeat").start()
        logger.info("starting %d clients, aliases: %s", len(self._all), self._course.route.kind)
        self._course.began = time.perf_counter()
        self._course.ends = math.inf if seconds is None else self._course.began + seconds
        self._course.go.set()
        if late:
            self.stop(patience_s=0)
            raise Refused(
                "load_stuck",
                f"{len(late)} clients got no answer within {_WARM_UP_S:g} s, so the load did not "
                "start",
                hint="check whether a pooler is paused (SHOW DATABASES) or a server hangs",
            )

    def _beat(self) -> None:
        """Wake every 5 ms, and record the longest delay.

        All threads are delayed alike when they lack a processor or the interpreter's lock.
        """
        due = time.perf_counter() + _EVERY_S
        while not self._course.stop.wait(_EVERY_S):
            now = time.perf_counter()
            self._late_s = max(self._late_s, now - due)
            due = now + _EVERY_S

    def _join(self, seconds: float) -> bool:
        """Wait for all clients to end; return whether they have."""
        deadline = time.monotonic() + seconds
        return all(client.join(max(0.0, deadline - time.monotonic())) for client in self._all)

    def _drop(self) -> None:
        self.left = table.drop(self._topology)

    def _report(self, found: Fleet, verdict: Verdict) -> Report:
        records, before, after = self._records, self._first, found.owners
        moved = tuple(sorted(s for s in after if before.get(s) != after[s]))
        repeated = 0 if self._router is None else self._router.stats().repeated
        return report.Report(
            clients=self._clients,
            aliases=self._course.route.kind,
            elapsed_s=max((r.ended[-1] for r in records if r.ended), default=0.0),
            operations=report.operations(records),
            acknowledged_inserts=sum(r.inserts for r in records),
            acknowledged_updates=sum(r.updates for r in records),
            failures=report.failures(records),
            fenced=sum(r.fenced for r in records) + repeated,
            latencies=report.measure(records, frozenset(moved)),
            logins=self._found_by_logins(frozenset(moved)),
            held_up_ms=round(self._late_s * 1000, 3),
            moved=moved,
            unserved=tuple(sorted(found.unserved())),
            unseen={n: seen.refusal for n, seen in found.nodes.items() if seen.refusal},
            verdict=verdict,
        )

    def _found_by_logins(self, moved: frozenset[ShardId]) -> report.Logins | None:
        """Sum up the open loop separately, if there was one."""
        if self._logins is None:
            return None
        latencies = report.measure([self._logins.record], moved)
        return report.Logins(self._logins.rate, latencies, round(self._logins.late_s * 1000, 3))
