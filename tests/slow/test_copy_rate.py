"""The copy of a stream keeps to `--max-rate`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardctl.postgres import slots
from shardctl.postgres.logical import copying, structure
from tests.fixtures.servers.streams import NAME, SCHEMA

if TYPE_CHECKING:
    from tests.fixtures.servers.streams import Streamed


def test_a_rate_holds_for_all_pipes_together_and_rows_arrive_frozen(streamed: Streamed) -> None:
    streamed.make(
        "CREATE TABLE large (id int, note text)", "CREATE TABLE larger (id int, note text)",
        "INSERT INTO large SELECT n, repeat('x', 90) FROM generate_series(1, 20000) AS n",
        "INSERT INTO larger SELECT n, repeat('y', 90) FROM generate_series(1, 90000) AS n",
    )  # fmt: skip
    structure.make_tables(streamed.route, [SCHEMA], major=streamed.major)
    total = sum(table.bytes for table in copying.tables(streamed.source, [SCHEMA]))
    with slots.make_logical(streamed.route, NAME, watch=streamed.source, report=print) as snapshot:
        began = time.monotonic()
        streamed.pour(snapshot, max_rate=total)
        assert time.monotonic() - began > 0.6  # the rows alone are less than what is on disk
    streamed.equal("large", "larger")
    # A vacuum reads no page that is known to be frozen.
    known = "SELECT pg_relation_size('shard2.larger', 'vm') > 0"
    assert streamed.target.execute(known).fetchone() == (True,)
