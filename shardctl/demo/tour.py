"""The tour of `shardctl demo`: servers, init, rows, an id decoded and routed back."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psycopg
from psycopg import sql

from shardctl import fanout
from shardctl.checks import status_poolers
from shardctl.checks import verify as checks
from shardctl.demo import example, moving
from shardctl.demo.moving import demo_failed
from shardctl.errors import ShardctlError
from shardctl.ids import times
from shardctl.ids.layout import Layout
from shardctl.provision import fleet
from shardctl.sandbox import poolers, servers
from shardctl.topology import keys, loader, ranges, routes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.checks.verify import Report
    from shardctl.fanout import Progress
    from shardctl.topology.model import ShardId, Topology

ROWS = 3000
"""Rows that go into every shard."""


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the closing table."""

    did: str
    result: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """A row that was written: what the database made of it."""

    id: int
    user_id: int
    shard: ShardId


class Tour:
    """A sandbox in a temporary directory; `run` tells each step as it ends.

    As a context manager it stops the servers and removes the directory, unless `keep`.
    """

    def __init__(self, progress: Progress, *, keep: bool) -> None:
        self._progress = progress
        self._keep = keep
        self.directory = Path(tempfile.mkdtemp(prefix="shardctl-demo-"))
        # Where shardctl runs as root, the servers run as another user, who has to get in.
        self.directory.chmod(0o755)
        try:
            file = example.lay_out(self.directory, poolers=poolers.available())
            self.topology = loader.load(file)
        except ShardctlError:
            shutil.rmtree(self.directory)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._keep and error[0] is None:
            return
        try:
            poolers.down(self.topology, fanout.Silent(), delete=True)
        finally:  # a pooler that stays is no reason to leave the nodes up
            servers.down(self.topology, fanout.Silent(), delete=True)
        shutil.rmtree(self.directory)

    def run(self) -> Iterator[Step]:
        """Do the tour; raises demo_failed, or what a step raises."""
        began = time.monotonic()

        def step(did: str, result: str) -> Step:
            nonlocal began
            now = time.monotonic()
            taken, began = now - began, now
            return Step(did, result, taken)

        topology = self.topology
        up = servers.up(topology, self._progress)
        majors = {state.major for state in servers.status(topology) if state.state == "up"}
        yield step("servers started", f"{len(up)} x PostgreSQL {', '.join(map(str, majors))}")

        if topology.poolers:
            offering = poolers.up(topology, self._progress)
            versions = {p.version for p in status_poolers.observe(topology)}
            told = f"{len(offering)} x PgBouncer {', '.join(map(str, versions))}"
            yield step("poolers started", told)

        plan = fleet.plan_init(topology)
        fleet.carry_out(plan, fleet.Options(), self._progress)
        owned = ", ".join(f"{n.name}: {ranges.of(n.shards)}" for n in topology.owning())
        yield step("shardctl init", f"{topology.shard_count} shards ({owned})")

        left = fleet.plan_init(topology).changes()
        if left:
            raise demo_failed(f"a second init would still make {len(left)} changes")
        yield step("shardctl init, once more", "nothing to do")

        rows = _insert(topology)
        way = "through PgBouncer, an alias a shard" if topology.poolers else "straight to the nodes"
        yield step("rows written", f"{len(rows):,} {way}")

        distinct, misplaced = _check(topology, rows)
        yield step("ids checked", f"{distinct:,} distinct, {misplaced} in a wrong shard")

        row = rows[len(rows) // 2]
        decoded = Layout.of(topology.id).decode(row.id)
        yield step(
            f"shardctl decode-id {row.id}",
            f"{times.render(decoded.time_ms)}, shard {decoded.shard}, sequence {decoded.sequence}",
        )
        yield step(f"shardctl route --id {row.id}", _route_back(topology, row))

        yield from self._move(step)

    def _move(self, step: Callable[[str, str], Step]) -> Iterator[Step]:
        """Move shards under load, have all verified, and give the space back."""
        steps: list[Step] = []

        def told(one: moving.Moved) -> None:
            pause = "unknown" if one.pause_ms is None else f"{one.pause_ms:.0f} ms"
            did = f"shardctl move-shards {one.shards} --to {one.target}"
            steps.append(step(did, f"cloned {one.source}; clients held for {pause}"))

        story = moving.tell(self.topology, self._progress, told)
        self.topology = loader.load(self.topology.path)
        yield from steps
        report = story.report
        done = sum(report.operations.values())
        load = f"{done:,} operations: {report.clients} clients, {moving.LOGINS:g} logins a second"
        yield step("the load beside it", load)
        longest, stayed = report.longest_moved_ms or 0, report.longest_stayed_ms or 0
        yield step("longest wait", f"{longest:.0f} ms on moved shards, {stayed:.0f} ms on others")
        if report.logins is not None:
            latencies = report.logins.latencies
            moved, others = (latencies.longest_ms(moved=one) or 0 for one in (True, False))
            found = f"{moved:.0f} ms on moved shards, {others:.0f} ms on others"
            yield step("longest wait of a login", found)
        written = report.acknowledged_inserts
        yield step(
            "compared with the fleet",
            f"{written:,} rows: {report.errors} errors, {report.lost} lost, "
            f"{report.duplicates} duplicates",
        )
        verify(self.topology, self._progress)
        given = moving.give_back(self.topology, self._progress)
        yield step("shardctl verify, prune", f"all is well, {given / 2**20:.1f} MB given back")


def verify(topology: Topology, progress: Progress) -> Report:
    """Have everything verified, and raise demo_failed unless all is well."""
    report = checks.verify(topology, (), deep=True, progress=progress)
    if not report.ok(strict=True):
        told = "; ".join(f"{f.check} {f.code} {f.actual}" for f in report.findings)
        raise demo_failed(f"verify found {told}")
    return report


def _connect(topology: Topology, shard: ShardId) -> psycopg.Connection[tuple[int, ...]]:
    """Connect to a shard as an application's first role does: by its alias, if there are any."""
    route = routes.of_shard(topology, shard)
    role = topology.database.app_roles[0]
    if route.poolers:
        pooler, alias = route.poolers[0]
        return psycopg.connect(
            host=pooler.host, port=pooler.port, dbname=alias, user=role, prepare_threshold=None
        )
    connection = psycopg.connect(
        host=route.node.host, port=route.node.port, dbname=topology.database.name, user=role
    )
    path = sql.SQL("SET search_path TO {}").format(sql.Identifier(route.schema))
    connection.execute(path)
    return connection


def _insert(topology: Topology) -> list[Row]:
    """Write ROWS rows into every shard, one session a shard, and give them as they came back."""

    def fill(shard: ShardId) -> list[Row]:
        # Users whose key leads to this shard.
        users = [shard + topology.shard_count * n for n in range(ROWS)]
        if any(keys.shard_of(user, topology.shard_count) != shard for user in users):
            raise demo_failed(f"a key of shard {shard} leads elsewhere")
        insert = (
            "INSERT INTO photos_by_user (user_id, caption, image_url)"
            " VALUES (%s, 'a sunset', 'https://photos.example/' || %s) RETURNING id"
        )
        with _connect(topology, shard) as connection, connection.cursor() as cursor:
            cursor.executemany(insert, [(user, user) for user in users], returning=True)
            ids = []
            while True:
                row = cursor.fetchone()
                if row is not None:
                    ids.append(row[0])
                if not cursor.nextset():
                    break
        return [Row(number, user, shard) for number, user in zip(ids, users, strict=True)]

    filled = fanout.collect(topology.owners(), fill, width=4).every()
    return [row for rows in filled for row in rows]


def _check(topology: Topology, rows: list[Row]) -> tuple[int, int]:
    """Count distinct ids and ids that name another shard than the row's; all must be right."""
    layout = Layout.of(topology.id)
    distinct = len({row.id for row in rows})
    misplaced = sum(layout.decode(row.id).shard != row.shard for row in rows)
    if distinct != len(rows) or misplaced:
        raise demo_failed(f"{len(rows) - distinct} duplicate ids, {misplaced} in a wrong shard")
    return distinct, misplaced


def _route_back(topology: Topology, row: Row) -> str:
    """Find a row again with nothing but its id."""
    route = routes.of_shard(topology, Layout.of(topology.id).decode(row.id).shard)
    query = "SELECT user_id FROM photos_by_user WHERE id = %s"
    with _connect(topology, route.shard) as connection:
        found = connection.execute(query, (row.id,)).fetchone()
    if found != (row.user_id,):
        raise demo_failed(f"row {row.id} was not found in {route.schema} on {route.node.name}")
    return f"{route.schema} on node {route.node.name}: the row of user {row.user_id}"
