"""The tour of `shardctl demo`: servers, init, rows, an id decoded and routed back, and moves.

Shards move to new nodes, one to a node that serves, while clients write. The fleet is the talk's
example in a directory of its own, on free ports.
"""

from __future__ import annotations

import re
import shutil
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psycopg
from psycopg import sql

import shardctl
from shardctl import fanout
from shardctl.checks import status
from shardctl.checks import verify as checks
from shardctl.errors import Refused, ShardctlError
from shardctl.ids import times
from shardctl.ids.layout import Layout
from shardctl.moves import prune, service
from shardctl.moves.plan import STREAM, Options
from shardctl.provision import fleet
from shardctl.sandbox import poolers, servers
from shardctl.state import lock
from shardctl.state.map import Map
from shardctl.topology import edit, loader, ranges, routes
from shardctl.traffic.load import Load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.checks.verify import Report
    from shardctl.fanout import Progress
    from shardctl.topology.model import ShardId, Topology
    from shardctl.traffic.client_routes import Aliases
    from shardctl.traffic.report import Report as LoadReport


ROWS = 3000
"""Rows to write into every shard."""


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the closing table."""

    did: str
    result: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """A written row, with the id that the database made."""

    id: int
    user_id: int
    shard: ShardId


class Tour:
    """A sandbox in a temporary directory; `run` yields each step as it ends.

    As a context manager it stops the servers and removes the directory, unless `keep`.
    """

    def __init__(self, progress: Progress, *, keep: bool) -> None:
        self._progress = progress
        self._keep = keep
        self.directory = Path(tempfile.mkdtemp(prefix="shardctl-demo-"))
        # If shardctl runs as root, the servers run as another user, who must be able to enter.
        self.directory.chmod(0o755)
        try:
            file = lay_out(self.directory, poolers=poolers.available())
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
        finally:  # a pooler that does not stop must not keep the nodes running
            servers.down(self.topology, fanout.Silent(), delete=True)
        shutil.rmtree(self.directory)

    def run(self) -> Iterator[Step]:
        """Run the tour; raises demo_failed, or what a step raises."""
        began = time.monotonic()

        def step(did: str, result: str) -> Step:
            nonlocal began
            now = time.monotonic()
            taken, began = now - began, now
            return Step(did, result, taken)

        topology = self.topology = servers.protected(self.topology)
        up = servers.up(topology, self._progress)
        majors = {state.major for state in servers.status(topology) if state.state == "up"}
        yield step("servers started", f"{len(up)} x PostgreSQL {', '.join(map(str, majors))}")

        if topology.poolers:
            offering = poolers.up(topology, self._progress)
            versions = {p.version for p in status.observe_poolers(topology)}
            started = f"{len(offering)} x PgBouncer {', '.join(map(str, versions))}"
            yield step("poolers started", started)

        plan = fleet.plan_init(topology)
        fleet.carry_out(plan, fleet.Options(), self._progress)
        owned = ", ".join(f"{n.name}: {ranges.of(n.shards)}" for n in topology.owning())
        yield step("shardctl init", f"{topology.shard_count} shards ({owned})")

        left = fleet.plan_init(topology).changes()
        if left:
            raise demo_failed(f"a second init would still make {len(left)} changes")
        yield step("shardctl init, once more", "nothing to do")

        rows = _insert(topology)
        route = "through PgBouncer, by aliases of shards" if topology.poolers else "on the nodes"
        yield step("rows written", f"{len(rows):,} {route}")

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
        """Move shards under load, verify the fleet, and free the space."""
        steps: list[Step] = []

        def on_move(one: Moved) -> None:
            pause = "unknown" if one.pause_ms is None else f"{one.pause_ms:.0f} ms"
            did = f"shardctl move-shards {one.shards} --to {one.target}"
            how = "streamed from" if one.method == STREAM else "cloned"
            steps.append(step(did, f"{how} {one.source}; clients waited {pause}"))

        story = move_all(self.topology, self._progress, on_move)
        self.topology = loader.load(self.topology.path)
        yield from steps
        report = story.report
        done = sum(report.operations.values())
        load = f"{done:,} operations: {report.clients} clients, {LOGINS:g} logins a second"
        yield step("load during the moves", load)
        longest, stayed = report.longest_moved_ms or 0, report.longest_stayed_ms or 0
        waits = f"{longest:.0f} ms on moved shards, {stayed:.0f} ms elsewhere"
        yield step("longest wait", waits)
        if report.logins is not None:
            latencies = report.logins.latencies
            moved, stayed = (latencies.longest_ms(moved=one) or 0 for one in (True, False))
            found = f"{moved:.0f} ms on moved shards, {stayed:.0f} ms elsewhere"
            yield step("longest wait of a login", found)
        written = report.acknowledged_inserts
        yield step(
            "compared with the fleet",
            f"{written:,} rows: {report.errors} errors, {report.lost} lost, "
            f"{report.duplicates} duplicates",
        )
        verify(self.topology, self._progress)
        given = give_back(self.topology, self._progress)
        yield step("shardctl verify, prune", f"all is well, {given / 2**20:.1f} MB freed")


def verify(topology: Topology, progress: Progress) -> Report:
    """Verify the fleet; raises demo_failed for any finding."""
    report = checks.verify(topology, (), deep=True, progress=progress)
    if not report.ok(strict=True):
        found = "; ".join(f"{f.check} {f.code} {f.actual}" for f in report.findings)
        raise demo_failed(f"verify found {found}")
    return report


def _connect(topology: Topology, shard: ShardId) -> psycopg.Connection[tuple[int, ...]]:
    """Connect to a shard as the first application role, by its alias if a pooler has one."""
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
    """Write ROWS rows into every shard, one session per shard, and return them."""

    def fill(shard: ShardId) -> list[Row]:
        # Users whose keys belong to this shard.
        users = [shard + topology.shard_count * n for n in range(ROWS)]
        if any(Map.of(topology).shard_of(user) != shard for user in users):
            raise demo_failed(f"a key of shard {shard} belongs to another shard")
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
    """Count distinct ids, and ids of another shard than the row's; raises demo_failed for any."""
    layout = Layout.of(topology.id)
    distinct = len({row.id for row in rows})
    misplaced = sum(layout.decode(row.id).shard != row.shard for row in rows)
    if distinct != len(rows) or misplaced:
        raise demo_failed(f"{len(rows) - distinct} duplicate ids, {misplaced} in a wrong shard")
    return distinct, misplaced


def _route_back(topology: Topology, row: Row) -> str:
    """Find a row by its id."""
    route = routes.of_shard(topology, Layout.of(topology.id).decode(row.id).shard)
    query = "SELECT user_id FROM photos_by_user WHERE id = %s"
    with _connect(topology, route.shard) as connection:
        found = connection.execute(query, (row.id,)).fetchone()
    if found != (row.user_id,):
        raise demo_failed(f"row {row.id} was not found in {route.schema} on {route.node.name}")
    return f"{route.schema} on node {route.node.name}: the row of user {row.user_id}"


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
    report: LoadReport


def move_all(topology: Topology, progress: Progress, on_move: Callable[[Moved], None]) -> Story:
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
        "misplaced rows": report.verdict.counts.get("misplaced", 0),
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
    decided = service.plan(topology, shards, target, options, method=None)
    service.preflight(topology, decided)
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


_POOLERS = re.compile(r"^poolers:\n(?:[ \t].*\n|\n)+", re.MULTILINE)


def source() -> Path:
    """Return the directory of the example, in a wheel or at the root of a checkout."""
    package = Path(shardctl.__file__).parent
    places = [package / "demo" / "example", package.parent]
    for place in places:
        if (place / "topology.yaml").is_file():
            return place
    raise Refused(
        "example_missing",
        f"cannot find the example's topology.yaml in {' or '.join(map(str, places))}",
        hint="reinstall shardctl, from a wheel or from a checkout",
    )


def lay_out(directory: Path, *, poolers: bool, example: Path | None = None) -> Path:
    """Copy the talk's example, or another, into `directory`; return its topology file.

    Replaces ports that are in use, and removes the poolers on request; the rest of the file stays
    the same.
    """
    example = example or source()
    shutil.copytree(example / "migrations", directory / "migrations")
    text = (example / "topology.yaml").read_text(encoding="utf-8")
    if not poolers:
        text = _POOLERS.sub("", text)
    topology = loader.parse(text.encode(), directory / "topology.yaml")
    wanted: dict[tuple[str, ...], int] = {}
    for node in topology.nodes.values():
        wanted["nodes", node.name, "port"] = node.port
    for pooler in topology.poolers.values():
        wanted["poolers", pooler.name, "port"] = pooler.port
    file = directory / "topology.yaml"
    file.write_text(edit.replace_scalars(text, _free(wanted)), encoding="utf-8")
    return file


def _free(wanted: dict[tuple[str, ...], int]) -> dict[tuple[str, ...], str]:
    """Choose another port for each that is in use; holds all until all are chosen."""
    held: list[socket.socket] = []
    chosen: dict[tuple[str, ...], str] = {}
    try:
        for path, port in wanted.items():
            for candidate in (port, 0):
                probe = socket.socket()
                held.append(probe)
                try:
                    probe.bind(("127.0.0.1", candidate))
                except OSError:
                    continue
                chosen[path] = str(probe.getsockname()[1])
                break
    finally:
        for probe in held:
            probe.close()
    return chosen
