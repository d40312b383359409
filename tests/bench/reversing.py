"""The reverse of a streamed move, beside a plain subscription that applies the same changes."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING

from shardctl.topology.model import ShardId
from tests.bench import moving
from tests.bench.measure import Row, compare, in_turn, rounds, say, seconds

if TYPE_CHECKING:
    from tests.bench.measure import Scale
    from tests.bench.moving import Sandbox

ROWS = 100_000
"""How many rows are changed before the reverse."""
RATIO = 1.5
"""How long the copies may take to catch up, of what the plain subscription takes."""
_AT_ONCE = 1000
_SHARD = ShardId(2)
_PLAIN = "plain"

_FILL = """\
INSERT INTO {schema}.photos_by_user (id, user_id, caption, image_url, created_at)
SELECT n, n % 1000, '', repeat(md5(n::text), 3), now() FROM generate_series(1, {rows}) AS n
"""
_CHANGE = """\
UPDATE {schema}.photos_by_user SET image_url = repeat(md5(image_url), 3)
WHERE id BETWEEN {first} AND {last}
"""


def back(scale: Scale) -> list[Row]:
    """Reverse a move behind which 100,000 rows were changed, three times.

    In each round a table like the moved one follows by a plain subscription between the same two
    servers, from a slot that was made as early. What counts is the time in which each gets to the
    end of the changes: of ours the step `follow`.
    """
    count = scale.of(ROWS, 2 * _AT_ONCE)

    def once(number: int) -> tuple[float, float]:
        with moving.sandbox(8, 2, 0) as fleet:
            _prepare(fleet, count)
            moved = fleet.move("2-3", "--to", "b", "--method", "stream", "--keep-reverse", "1h")
            for schema in (fleet.topology().schema(_SHARD), _PLAIN):
                _change(fleet, schema, count)
            fleet.settle()
            sides = partial(_reverse, fleet, moved.id), partial(_follow, fleet)
            ours, plain = in_turn(number, *sides)
            say(f"  reverse {number + 1}: {ours:.2f} s, plain: {plain:.2f} s ({moving.busy()})")
            return ours, plain

    ours, plain = zip(*rounds(scale.of(3, 1), once), strict=True)
    return [
        compare(
            f"reverse: catching up with {count:,} changed rows",
            ours,
            plain,
            against="a plain subscription",
            shown=seconds,
            target=RATIO,
        )
    ]


def _prepare(fleet: Sandbox, count: int) -> None:
    """Fill the moved table, and make one like it that follows by itself."""
    moved = fleet.topology().schema(_SHARD)
    for node, other in (("a", 0), ("b", 4)):
        like = fleet.topology().schema(ShardId(other))
        with fleet.connect(node) as session:
            session.execute(f"CREATE SCHEMA {_PLAIN}".encode())
            session.execute(
                f"CREATE TABLE {_PLAIN}.photos_by_user (LIKE {like}.photos_by_user"
                " INCLUDING INDEXES)".encode()
            )
            for schema in (_PLAIN, moved) if node == "a" else (_PLAIN,):
                session.execute(_FILL.format(schema=schema, rows=count).encode())
    with fleet.connect("b") as session:
        session.execute(f"CREATE PUBLICATION {_PLAIN} FOR TABLE {_PLAIN}.photos_by_user".encode())
        session.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [_PLAIN])


def _change(fleet: Sandbox, schema: str, count: int) -> None:
    """Change every row on b, some at a time."""
    with fleet.connect("b") as session:
        for first in range(1, count + 1, _AT_ONCE):
            last = first + _AT_ONCE - 1
            session.execute(_CHANGE.format(schema=schema, first=first, last=last).encode())


def _reverse(fleet: Sandbox, move: str) -> float:
    """Reverse the move, and give the seconds in which the copies have caught up."""
    made = json.loads(fleet.call("moves", "reverse", move, "--yes", "-o", "json"))["id"]
    shown = json.loads(fleet.call("moves", "show", made, "-o", "json"))
    [took_ms] = [one["elapsed_ms"] for one in shown["steps"] if one["name"] == "follow"]
    return float(took_ms) / 1000


def _follow(fleet: Sandbox) -> float:
    """Subscribe to the other table, and give the seconds until all changes have come."""
    node = fleet.node("b")
    where = f"host={node.host} port={node.port} dbname=app user=postgres passfile={fleet.passfile}"
    last = "SELECT 1 FROM plain.photos_by_user WHERE id = 0"
    with fleet.connect("b") as there, fleet.connect("a") as here:
        there.execute(
            "INSERT INTO plain.photos_by_user (id, user_id, caption, image_url, created_at)"
            " VALUES (0, 0, '', '', now())"
        )
        began = time.perf_counter()
        here.execute(
            f"CREATE SUBSCRIPTION {_PLAIN} CONNECTION '{where}' PUBLICATION {_PLAIN} WITH"
            f" (copy_data = false, create_slot = false, slot_name = {_PLAIN})".encode()
        )
        while here.execute(last).fetchone() is None:
            time.sleep(0.005)
        took = time.perf_counter() - began
        here.execute(f"DROP SUBSCRIPTION {_PLAIN}".encode())
    return took
