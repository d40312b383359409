"""How long migrations take: with nothing to do, beside parallel psql, with a canary, under load."""

from __future__ import annotations

import statistics
import threading
import time
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl.fanout import Silent
from shardctl.provision import fleet as provision
from shardctl.provision.job import Retrying
from shardctl.rollout import run as rolling
from shardctl.rollout.waves import Wanted
from shardctl.state.rollouts import Brakes
from tests.bench import fleet
from tests.bench.init import PSQLS
from tests.bench.measure import Row, alternate, compare, milliseconds, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardctl.topology.model import Topology
    from tests.bench.fleet import Fleet
    from tests.bench.measure import Scale

CANARY_S = 0.5
LOCK_TIMEOUT_MS = 100
LONGER_MS = 50
_CLIENTS = 4


def nothing(scale: Scale) -> list[Row]:
    """Time `migrate` where nothing is pending: 8,192 shards on 4 nodes, from outside."""
    shards, rounds = scale.of(8_192, 40), scale.of(5, 1)
    with fleet.running(4) as running:
        topology = running.init(shards)
        command: list[str | Path] = [fleet.SHARDCTL, "--topology", topology.path, "migrate"]
        took = []
        for _ in range(rounds):
            began = time.perf_counter()
            fleet.run(command)
            took.append(time.perf_counter() - began)
    median = statistics.median(took)
    return [
        Row(
            f"migrate with nothing to do, {shards:,} shards on 4 nodes",
            seconds(median),
            "-",
            target="<= 1 s",
            met=median <= 1,
            note="with Python's start",
        )
    ]


def one_column(scale: Scale) -> list[Row]:
    """Time a column in 2,000 shards on 2 nodes against psql, and what a canary adds.

    Fair: psql runs the same statements, 50 shards a transaction, and writes the same rows of the
    ledger. Each round adds another column, first by one side and then by the other.
    """
    shards, rounds = scale.of(2_000, 20), scale.of(5, 1)
    with fleet.running(2) as running:
        topology = running.init(shards)
        number = iter(range(3, 10_000))

        def file(name: str) -> str:
            found = next(number)
            text = f"ALTER TABLE photos_by_user ADD COLUMN {name}_{found} integer;\n"
            (running.directory / "migrations" / f"{found:04}_{name}.sql").write_text(text)
            return text

        def ours() -> float:
            file("ours")
            running.settle()
            began = time.perf_counter()
            plan = provision.plan_migrate(topology)
            provision.carry_out(plan, provision.Options(), Silent())
            return time.perf_counter() - began

        def canary() -> float:
            file("canary")
            running.settle()
            began = time.perf_counter()
            brakes = Brakes(soak_ms=0)
            plan, rollout = rolling.plan(topology, Wanted(canary=3), brakes, strict=True)
            if rollout is None:
                raise RuntimeError("nothing is pending")
            ended = rolling.advance(rolling.Way(lambda: topology), rollout, plan).rollout
            if ended.state != "done":
                raise RuntimeError(ended.reason)
            return time.perf_counter() - began

        def psql() -> float:
            text = file("psql")
            commands = _psql(running, topology, text, together=50)
            running.settle()
            began = time.perf_counter()
            with fleet.together(commands) as processes:
                fleet.wait_all(processes)
            return time.perf_counter() - began

        times = alternate({"ours": ours, "psql": psql, "canary": canary}, rounds)
    added = [a - b for a, b in zip(times["canary"], times["ours"], strict=True)]
    median = statistics.median(added)
    against = f"{PSQLS} psql a node"
    return [
        compare(
            f"migrate, a column in {shards:,} shards, 2 nodes",
            times["ours"],
            times["psql"],
            against=against,
            shown=seconds,
            target=1.15,
        ),
        Row(
            "  a canary of 3 adds",
            seconds(median),
            "-",
            target=f"<= {CANARY_S} s",
            met=median <= CANARY_S,
            note=f"{seconds(statistics.median(times['canary']))} in all",
        ),
    ]


def index(scale: Scale) -> list[Row]:
    """Time CREATE INDEX CONCURRENTLY in 500 shards on 2 nodes against psql.

    Fair: psql builds the same indexes, each side 4 at a time a node, and writes the ledger.
    """
    shards, rounds = scale.of(500, 20), scale.of(5, 1)
    with fleet.running(2) as running:
        topology = running.init(shards)
        number = iter(range(3, 10_000))

        def file(name: str) -> str:
            found = next(number)
            text = (
                "-- shardctl: no-transaction\n"
                f"CREATE INDEX CONCURRENTLY {name}_{found} ON photos_by_user (user_id);\n"
            )
            (running.directory / "migrations" / f"{found:04}_{name}.sql").write_text(text)
            return text

        def ours() -> float:
            file("ours")
            running.settle()
            began = time.perf_counter()
            plan = provision.plan_migrate(topology)
            provision.carry_out(plan, provision.Options(), Silent())
            return time.perf_counter() - began

        def psql() -> float:
            commands = _psql(running, topology, file("psql"), together=None)
            running.settle()
            began = time.perf_counter()
            with fleet.together(commands) as processes:
                fleet.wait_all(processes)
            return time.perf_counter() - began

        times = alternate({"ours": ours, "psql": psql}, rounds)
    return [
        compare(
            f"migrate, an index concurrently in {shards:,} shards, 2 nodes",
            times["ours"],
            times["psql"],
            against=f"{PSQLS} psql a node",
            shown=seconds,
            target=1.1,
        )
    ]


def load(scale: Scale) -> list[Row]:
    """Measure how long clients wait while a rollout changes their tables, and their errors.

    Clients write single rows in transactions of their own, as fast as they can; a report holds a
    lock on one table for seconds, so that the migration has to release its own and try again.
    """
    shards = scale.of(500, 20)
    with fleet.running(2) as running:
        topology = running.init(shards)
        file = running.directory / "migrations" / "0003_load.sql"
        file.write_text("ALTER TABLE photos_by_user ADD COLUMN load integer;\n")
        stop = threading.Event()
        waits: list[float] = []
        errors: list[str] = []
        clients = [
            threading.Thread(
                target=_client,
                args=[running, topology, index],
                kwargs={"stop": stop, "waits": waits, "errors": errors},
            )
            for index in range(_CLIENTS)
        ]
        report = threading.Thread(target=_report, args=[running, topology, scale.of(3, 1)])
        for one in (*clients, report):
            one.start()
        retrying = Retrying(lock_timeout_ms=LOCK_TIMEOUT_MS, attempts=200)
        try:
            time.sleep(scale.of(2, 1))
            before = len(waits)
            plan = provision.plan_migrate(topology)
            provision.carry_out(plan, provision.Options(retrying=retrying), Silent())
        finally:
            stop.set()
            for one in (*clients, report):
                one.join()
    longest = max(waits[before:]) * 1000
    limit = LOCK_TIMEOUT_MS + LONGER_MS
    return [
        Row(
            f"clients beside a migration of {shards:,} shards: longest wait",
            milliseconds(longest / 1000),
            f"lock timeout {LOCK_TIMEOUT_MS} ms",
            target=f"<= {limit} ms",
            met=longest <= limit,
            note=f"{len(waits) - before:,} transactions",
        ),
        Row("  errors of clients", f"{len(errors)}", "-", target="0", met=not errors),
    ]


def _client(
    running: Fleet,
    topology: Topology,
    index: int,
    *,
    stop: threading.Event,
    waits: list[float],
    errors: list[str],
) -> None:
    """Write rows into the shards of a node, one after the other."""
    node = list(topology.owning())[index % len(running.ports)]
    place = list(topology.nodes).index(node.name)
    with running.connect(place) as session:
        while not stop.is_set():
            for shard in node.shards:
                statement = sql.SQL(
                    "INSERT INTO {}.photos_by_user (user_id, image_url) VALUES (1, '')"
                ).format(sql.Identifier(topology.schema(shard)))
                began = time.perf_counter()
                try:
                    session.execute(statement)
                except psycopg.Error as error:
                    errors.append(str(error))
                waits.append(time.perf_counter() - began)
                if stop.is_set():
                    return


def _report(running: Fleet, topology: Topology, seconds_held: int) -> None:
    """Read a table in a long transaction."""
    node = topology.owning()[0]
    with running.connect(autocommit=False) as session:
        table = sql.Identifier(topology.schema(node.shards[-1]), "photos_by_user")
        session.execute(sql.SQL("SELECT count(*) FROM {}").format(table))
        time.sleep(seconds_held)


def _psql(
    running: Fleet, topology: Topology, text: str, *, together: int | None
) -> list[list[str | Path]]:
    """Write files that run a migration's text, and its rows; divide shards among psql evenly."""
    name = max(path.name for path in (running.directory / "migrations").iterdir())
    commands: list[list[str | Path]] = []
    for position, node in enumerate(topology.owning()):
        size = -(-len(node.shards) // PSQLS)
        for first in range(0, len(node.shards), size):
            mine = node.shards[first : first + size]
            file = running.directory / f"{node.name}.{first}.sql"
            file.write_text(_script(topology, name, mine, text, together), encoding="utf-8")
            psql = running.psql(position, user="postgres")
            commands.append([*psql, "-f", file])
    return commands


def _script(
    topology: Topology, name: str, shards: Sequence[int], text: str, together: int | None
) -> str:
    from shardctl.state import migrations

    [checksum] = [
        one.checksum for one in migrations.read(topology.database.migrations) if one.name == name
    ]
    parts: list[str] = []
    size = together or 1
    for first in range(0, len(shards), size):
        part = shards[first : first + size]
        parts += ["BEGIN;"] if together else []
        for shard in part:
            path = sql.SQL("SET search_path TO {}, public;").format(
                sql.Identifier(topology.schema(shard))  # type: ignore[arg-type]  # a ShardId is an int
            )
            parts += [path.as_string(), text]
        rows = sql.SQL(", ").join(
            sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Literal, (shard, name, checksum))))
            for shard in part
        )
        parts.append(
            sql.SQL("INSERT INTO shardctl.migration (shard, file, checksum) VALUES {};")
            .format(rows)
            .as_string()
        )
        parts += ["COMMIT;"] if together else []
    return "\n".join([*parts, ""])
