"""How long looks at many shards, and at every row, take beside a bare query for the same facts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.bench import fleet
from tests.bench.measure import Row, seconds, timed, versus

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardctl.topology.model import Node
    from tests.bench.measure import Scale

SAMPLE_S = 1
SIZES = """
SELECT relnamespace, sum(pg_relation_size(oid)) FROM pg_class
WHERE relkind IN ('r', 'i', 'S', 't') AND oid >= 16384 GROUP BY 1
"""
ROWS = """
INSERT INTO shard{shard}.photos_by_user (id, user_id, image_url)
SELECT shardctl.id_floor('2026-01-01'::timestamptz + g * interval '1 ms', {shard}),
       {shard} + 8 * g, '/1.jpg'
FROM generate_series(1, {rows}) AS g;
"""
ODD = """
SELECT count(*) FROM shard{shard}.photos_by_user
WHERE id < 0 OR (id >> 10) & 8191 <> {shard} OR shardctl.shard_of(user_id) <> {shard};
"""


def shards_list(scale: Scale) -> list[Row]:
    """Time `shards list --sort tps` of 8,192 shards, without its sample, and a SELECT of sizes."""
    words = ["shards", "list", "--sort", "tps", "--sample", f"{SAMPLE_S}s"]
    row = _look(scale, words, scale.of(8_192, 16), lambda _: SIZES, less_s=SAMPLE_S)
    return [_within(row, 2)]


def metrics(scale: Scale) -> list[Row]:
    """Time `metrics` of 8,192 shards, and a SELECT of each database's size."""
    query = "SELECT pg_database_size(current_database())"
    return [_within(_look(scale, ["metrics"], scale.of(8_192, 16), lambda _: query), 1)]


def every_row(scale: Scale) -> list[Row]:
    """Time what `--deep` adds to `verify` of 10,000,000 rows, and a SELECT of odd rows a table."""
    rows = scale.of(1_250_000, 100)

    def of_each(statement: str) -> Callable[[Node], str]:
        return lambda node: "".join(statement.format(shard=n, rows=rows) for n in node.shards)

    words = ["verify", "--check", "ids", "--deep"]
    return [_look(scale, words, 8, of_each(ODD), fill=of_each(ROWS), target=1.25)]


def _look(
    scale: Scale,
    words: list[str],
    shards: int,
    query: Callable[[Node], str],
    *,
    fill: Callable[[Node], str] = lambda _: "",
    less_s: float = 0,
    target: float | None = None,
) -> Row:
    """Time the whole process of a command, and psql with a query for each of two nodes at once."""
    with fleet.running(2) as running:
        topology = running.init(shards)
        nodes = topology.nodes.values()
        bare = [
            [*running.psql(index, user="postgres"), "-At", "-c", query(node)]
            for index, node in enumerate(nodes)
        ]
        for connection, node in zip(running.each("app"), nodes, strict=True):
            connection.execute(fill(node))
            connection.execute("VACUUM ANALYZE")
        running.settle()

        def whole(words: list[str]) -> float:
            argv: list[str | Path] = [fleet.SHARDCTL, "--topology", topology.path, *words]
            return timed(lambda: fleet.run(argv))()

        def ours() -> float:
            return whole(words) - (whole(words[:-1]) if words[-1] == "--deep" else less_s)

        sides = {"ours": ours, "bare": lambda: fleet.take(bare)}
        name = f"{' '.join(words)}, {shards:,} shards, 2 nodes"
        [row] = versus(name, sides, scale.of(7, 1), {"bare": ("a bare SELECT", target)}, seconds)
    return row


def _within(row: Row, most_s: float) -> Row:
    took_s = float(row.ours.split()[0])
    return replace(row, target=f"<= {most_s} s, quiet", met=took_s <= most_s)
