"""How long `init` takes: beside parallel psql, a second time, and with many shards."""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.fanout import Silent
from shardctl.postgres.connection import Running
from shardctl.provision import apply as applying
from shardctl.provision import fleet as provision
from shardctl.provision import shard as ddl
from shardctl.provision.plan import Options
from tests.bench import fleet
from tests.bench.measure import Row, alternate, compare, per, say, seconds, timed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardctl.provision.plan import NodePlan, ShardWork
    from shardctl.topology.model import Topology
    from tests.bench.fleet import Fleet
    from tests.bench.measure import Scale, Side

PSQLS = 4  # a node: as many as `init` has sessions by default
SHARDS_A_TRANSACTION = 50

# What a node holds when all is made, so that no side can be quick by doing less. Names of
# TOAST tables hold OIDs; of the map, the reference writes only the node's own shards.
_CENSUS = b"""
SELECT (SELECT count(*) FROM pg_class),
       (SELECT md5(string_agg(concat_ws(' ', c.relnamespace::regnamespace, relname, relkind,
                                        relacl), ',' ORDER BY c.relnamespace::regnamespace::text,
                                        relname))
        FROM pg_class AS c WHERE c.relnamespace <> 'pg_toast'::regnamespace),
       (SELECT md5(string_agg(concat_ws(' ', pronamespace::regnamespace, proname, prosrc, proacl),
                              ',' ORDER BY pronamespace::regnamespace::text, proname,
                                           proargtypes::text))
        FROM pg_proc WHERE pronamespace <> 'pg_catalog'::regnamespace),
       (SELECT md5(string_agg(concat_ws(' ', nspname, nspacl), ',' ORDER BY nspname))
        FROM pg_namespace),
       (SELECT md5(string_agg(concat_ws(' ', defaclnamespace::regnamespace, defaclobjtype,
                                        defaclacl), ',' ORDER BY
                                        defaclnamespace::regnamespace::text, defaclobjtype))
        FROM pg_default_acl),
       (SELECT md5(string_agg(concat_ws(' ', shard, file, checksum), ',' ORDER BY shard, file))
        FROM shardctl.migration),
       (SELECT count(*) FROM shardctl.map JOIN shardctl.cluster USING (node))
"""


def two_thousand(scale: Scale) -> list[Row]:
    """Time `init` of 2,000 shards on 2 nodes against 4 parallel psql a node, and a second `init`.

    Fair: psql runs the very statements of `init`, made from the same plan, 50 shards a
    transaction. It finds database, schema shardctl and functions made; `init`, timed from
    outside, still has to start Python, look at the fleet, make these and write the whole
    map. Before every run the database is dropped, the servers write a checkpoint and the
    kernel its pages. At the end of each, the catalogs must be equal, names, rights and all.

    A second `init` is timed in this process, where nothing has to start; its first is, too.
    """
    shards, rounds = scale.of(2_000, 20), scale.of(5, 1)
    censuses: set[tuple[object, ...]] = set()
    again: list[float] = []
    with fleet.running(2) as running:
        topology = running.init(4)  # makes the role; all sides find it
        topology = running.topology(shards)
        command: list[str | Path] = [fleet.SHARDCTL, "--topology", topology.path, "init", "--yes"]

        def fresh(work: Side) -> Side:
            def side() -> float:
                _fresh(running)
                took = work()
                censuses.add(_census(running))
                return took

            return side

        def in_process() -> float:
            took = _init(topology)
            nothing = timed(lambda: provision.plan_init(topology))
            again.append(statistics.median(nothing() for _ in range(5)))
            return took

        def psql() -> float:
            commands = _prepare_psql(running, topology)
            running.settle()
            return fleet.take(commands)

        process = timed(lambda: fleet.run(command))
        sides = {"process": process, "psql": psql, "in process": in_process}
        times = alternate({name: fresh(work) for name, work in sides.items()}, rounds)
    if len(censuses) != 1:
        raise RuntimeError(f"the sides made different things: {censuses}")
    what, against = f"init, {shards:,} shards x 2 tables, 2 nodes", f"{PSQLS} psql a node"
    return [
        compare(what, times["process"], times["psql"], against=against, shown=seconds, target=1.1),
        compare(
            "a second init",
            again,
            times["in process"],
            against="the first",
            shown=seconds,
            target=0.05,
        ),
    ]


def growth(scale: Scale) -> list[Row]:
    """Time a shard of 8,192 against one of 1,000, on the same 4 nodes.

    Fair: Python's start is left out, since a fixed cost would make the small fleet look
    slow. The small fleet is made three times for each time the large one is; its median counts.
    """
    few, many = scale.of(1_000, 12), scale.of(8_192, 40)
    with fleet.running(4) as running:
        running.init(4)

        def of(shards: int) -> float:
            topology = running.topology(shards)
            _fresh(running)
            return _init(topology) / shards

        def side(shards: int, times: int) -> float:
            took = statistics.median(of(shards) for _ in range(times))
            say(f"{shards} shards: {took * 1000:.2f} ms a shard")
            return took

        times = alternate(
            {"few": lambda: side(few, 3), "many": lambda: side(many, 1)},
            scale.of(2, 1),
        )
    return [
        compare(
            f"init of {many:,} shards on 4 nodes, a shard",
            times["many"],
            times["few"],
            against=f"of {few:,} shards",
            shown=per(1, "shard"),
            target=1.2,
            note=f"{statistics.median(times['many']) * many:.1f} s for all {many:,}",
        ),
    ]


def _fresh(running: Fleet) -> None:
    running.drop()
    running.settle()


def _init(topology: Topology) -> float:
    """Do what the command does once its modules are imported."""
    began = time.perf_counter()
    plan = provision.plan_init(topology)
    provision.carry_out(plan, Options(), Silent())
    took = time.perf_counter() - began
    if provision.plan_init(topology).nodes:
        raise RuntimeError("not all shards were made")
    return took


def _prepare_psql(running: Fleet, topology: Topology) -> list[list[str | Path]]:
    """Make all but the shards, write the shards' statements to files; give the commands."""
    plan = provision.plan_init(topology)
    commands: list[list[str | Path]] = []
    for index, node in enumerate(plan.nodes):
        shared = replace(node, shards=(), map_version=None)
        with running.connect(index, user="postgres", dbname="postgres") as connection:
            connection.execute("CREATE DATABASE app")
        errors = applying.apply(
            topology,
            shared,
            command="init",
            options=Options(jobs=1),
            progress=Silent(),
            stop=threading.Event(),
            running=Running(),
        )
        if errors:
            raise errors[0]
        psql = running.psql(index, user="postgres")
        commands += [[*psql, "-f", file] for file in _write_files(running.directory, node)]
    return commands


def _write_files(directory: Path, node: NodePlan) -> list[Path]:
    """Divide a node's shards evenly among files of transactions."""
    size = -(-len(node.shards) // PSQLS)
    files = []
    for number, first in enumerate(range(0, len(node.shards), size)):
        mine = node.shards[first : first + size]
        file = directory / f"{node.node}.{number}.sql"
        file.write_text(
            "".join(
                _transaction(node, mine[i : i + SHARDS_A_TRANSACTION])
                for i in range(0, len(mine), SHARDS_A_TRANSACTION)
            ),
            encoding="utf-8",
        )
        files.append(file)
    return files


def _transaction(node: NodePlan, shards: tuple[ShardWork, ...]) -> str:
    """Write what `init` does in a transaction, without its questions.

    Nor does it put every setting back between migrations, as `init` does for safety: who
    writes such files knows what is in them.
    """
    parts = ["BEGIN;"]
    for work in shards:
        parts.append(ddl.script(work).as_string())
        path = sql.SQL("SET LOCAL search_path TO {}, public;").format(sql.Identifier(work.schema))
        # What a careful script would do: `init` resets more between two migrations.
        parts += [path.as_string()] * 2
        parts += [migration.text for migration in work.migrations]
    parts.append("SET LOCAL search_path TO pg_catalog;")
    map_rows = [(work.shard, work.schema, node.node) for work in shards]
    ran = [(work.shard, m.name, m.checksum) for work in shards for m in work.migrations]
    parts.append(_insert("shardctl.map (shard, schema, node)", map_rows))
    parts.append(_insert("shardctl.migration (shard, file, checksum)", ran))
    parts.append("COMMIT;\n")
    return "\n".join(parts)


def _insert(into: str, rows: Sequence[tuple[object, ...]]) -> str:
    lines = (sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Literal, row))) for row in rows)
    return f"INSERT INTO {into} VALUES {sql.SQL(', ').join(lines).as_string()};"


def _census(running: Fleet) -> tuple[object, ...]:
    return tuple(connection.execute(_CENSUS).fetchone() for connection in running.each("app"))
