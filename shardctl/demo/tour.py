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
from shardctl.demo import example
from shardctl.errors import ShardctlError
from shardctl.ids import times
from shardctl.ids.layout import Layout
from shardctl.provision import fleet
from shardctl.sandbox import poolers, servers
from shardctl.topology import keys, loader, ranges, routes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.checks.verify import Report
    from shardctl.fanout import Progress
    from shardctl.topology.model import ShardId, Topology

ROWS = 3000
"""Rows that go into every shard."""


class DemoFailed(ShardctlError):
    """The tour met something that is not as it must be."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the demo failed: {what}", hint="this is a bug; please report it")


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
        """Do the tour; raises DemoFailed, or what a step raises."""
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
            raise DemoFailed(f"a second init would still make {len(left)} changes")
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


def verify(topology: Topology, progress: Progress) -> Report:
    """Have everything verified, and raise DemoFailed unless all is well."""
    report = checks.verify(topology, (), deep=True, progress=progress)
    if not report.ok(strict=True):
        told = "; ".join(f"{f.check} {f.code} {f.actual}" for f in report.findings)
        raise DemoFailed(f"verify found {told}")
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
            raise DemoFailed(f"a key of shard {shard} leads elsewhere")
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

    outcomes = fanout.run(topology.owners(), fill, width=4)
    return [row for outcome in outcomes for row in outcome.result()]


def _check(topology: Topology, rows: list[Row]) -> tuple[int, int]:
    """Count distinct ids and ids that name another shard than the row's; all must be right."""
    layout = Layout.of(topology.id)
    distinct = len({row.id for row in rows})
    misplaced = sum(layout.decode(row.id).shard != row.shard for row in rows)
    if distinct != len(rows) or misplaced:
        raise DemoFailed(f"{len(rows) - distinct} duplicate ids, {misplaced} in a wrong shard")
    return distinct, misplaced


def _route_back(topology: Topology, row: Row) -> str:
    """Find a row again with nothing but its id."""
    route = routes.of_shard(topology, Layout.of(topology.id).decode(row.id).shard)
    query = "SELECT user_id FROM photos_by_user WHERE id = %s"
    with _connect(topology, route.shard) as connection:
        found = connection.execute(query, (row.id,)).fetchone()
    if found != (row.user_id,):
        raise DemoFailed(f"row {row.id} was not found in {route.schema} on {route.node.name}")
    return f"{route.schema} on node {route.node.name}: the row of user {row.user_id}"
