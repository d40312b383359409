"""Drivers that parse an unnamed statement, wait, and bind it in a second round trip.

pg8000 does so, lib/pq, and pgx in its describe modes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg.pq import ExecStatus

from tests.fixtures import resets

if TYPE_CHECKING:
    from tests.fixtures.fleets.pooled import PooledFleet

SELECT = b"SELECT count(*) FROM photos WHERE user_id = $1"


def served(fleet: PooledFleet, *, transaction: bool = False, together: bool = False) -> int:
    """Count which of ten selects of a lone client end well."""
    ended = 0
    with fleet.pg_bouncer.connect("shard5", fleet.role) as one:
        for _ in range(10):
            if transaction:
                one.pgconn.exec_(b"BEGIN")
            if together:
                result = one.pgconn.exec_params(SELECT, [b"5"])
            else:
                one.pgconn.prepare(b"", SELECT)
                result = one.pgconn.exec_prepared(b"", [b"5"])
            ended += result.status == ExecStatus.TUPLES_OK
            if transaction:
                one.pgconn.exec_(b"ROLLBACK")
    return ended


def test_survive_reset_lets_them_fail_outside_transactions(
    fleet_pooled_healthy: PooledFleet,
) -> None:
    """The query between transactions drops the unnamed statement, whatever the query is."""
    fleet = fleet_pooled_healthy
    assert served(fleet) == 10
    resets.survive(fleet)
    assert served(fleet) == 0
    assert served(fleet, transaction=True) == 10
    assert served(fleet, together=True) == 10


def test_survive_reset_serves_them_where_sessions_are_pooled(
    fleet_pooled_healthy: PooledFleet,
) -> None:
    fleet = fleet_pooled_healthy
    resets.survive(fleet)
    pooler = fleet.pg_bouncer
    text = pooler.config.read_text()
    pooler.config.write_text(text.replace("pool_mode = transaction", "pool_mode = session"))
    pooler.admin("RELOAD")
    assert served(fleet) == 10
