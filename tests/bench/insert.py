"""What a key costs a single-row INSERT: strict ids beside bigserial."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from tests.bench import fleet, ids
from tests.bench.measure import Row, per, timed, versus

if TYPE_CHECKING:
    import psycopg

    from tests.bench.measure import Scale, Side

NODE = 1  # the server of shard 5
MOST = 1.15
KEYS = {"strict": f"bigint DEFAULT {ids.OURS}", "bigserial": "bigserial"}

# The narrowest table that is still one: no second index, whose upkeep would hide the key's.
_TABLE = """
CREATE TABLE shard{shard}.{name}_rows (
    id {key} PRIMARY KEY, user_id bigint NOT NULL, caption text NOT NULL
)
"""


def single_rows(scale: Scale) -> list[Row]:
    """Time single-row INSERTs with strict ids against bigserial.

    Fair: the same narrow table for both keys, the same driver, one session, as the role `app`;
    fsync is on. With one INSERT a transaction, most of the time is the commit's, whoever makes
    the key; so there are rows with many INSERTs a transaction, of which the round trip is the
    largest part. "unprepared" is what a pooler that does not know prepared statements leaves of
    a driver: the server parses, plans and inlines next_id() anew for every row.
    """
    rows: list[Row] = []
    with fleet.running(2) as running, ExitStack() as stack:
        running.init(ids.SHARDS)
        with running.connect(NODE, user="postgres") as connection:
            for name, key in KEYS.items():
                connection.execute(_TABLE.format(shard=ids.SHARD, name=name, key=key).encode())
        running.settle()
        # psycopg's default is to prepare what it has seen five times.
        prepared, unprepared = (
            stack.enter_context(running.connect(NODE, prepare_threshold=threshold))
            for threshold in (5, None)
        )
        for what, session, count, together in (
            ("one a transaction", prepared, scale.of(200, 10), False),
            ("many a transaction, prepared", prepared, scale.of(500, 20), True),
            ("many a transaction, unprepared", unprepared, scale.of(500, 20), True),
        ):
            sides = {name: _side(session, name, count, together=together) for name in KEYS}
            name, against = f"INSERT, {what}", {"bigserial": ("bigserial", MOST)}
            rows += versus(name, sides, scale.of(41, 2), against, per(count, "row"), warm=True)
    return rows


def _side(session: psycopg.Connection[Any], name: str, count: int, *, together: bool) -> Side:
    """Insert rows and learn their ids, as an application does."""
    into = f"shard{ids.SHARD}.{name}_rows (user_id, caption)"
    statement = f"INSERT INTO {into} VALUES (%s, %s) RETURNING id".encode()

    def insert() -> None:
        for user in range(count):
            session.execute(statement, (user, "a caption")).fetchone()

    def in_a_transaction() -> None:
        with session.transaction():
            insert()

    return timed(in_a_transaction if together else insert)
