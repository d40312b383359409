"""Sources from which preflight lets nothing be moved: each cause is made, and taken back."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.fixtures.servers.postgres import owned, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.moves.preflight import Movable


def test_a_tablespace(preflight_fleet: Movable, server_directory: Path) -> None:
    place = owned(server_directory, "space")
    session = preflight_fleet.fleet.servers["a"].connect()
    try:
        session.execute(f"CREATE TABLESPACE slow LOCATION '{place}'".encode())
        preflight_fleet.only("tablespaces", "source")
    finally:
        session.execute("DROP TABLESPACE IF EXISTS slow")
        session.close()


def test_a_table_that_somebody_holds_locked(preflight_fleet: Movable) -> None:
    preflight_fleet.choose(max_pause_s=1)
    with preflight_fleet.fleet.connect("a", autocommit=False) as holder:
        holder.execute("LOCK TABLE shard2.photos")
        assert "shard2" in preflight_fleet.only("locked", "source")
        holder.rollback()


def age(preflight_fleet: Movable, pid: int) -> float:
    found = preflight_fleet.fleet.query(
        "a",
        "SELECT extract(epoch FROM clock_timestamp() - xact_start)::float8"
        f" FROM pg_stat_activity WHERE pid = {pid}",
    )
    return float(found[0][0])


def test_transactions_that_are_older_than_the_budget(preflight_fleet: Movable) -> None:
    preflight_fleet.choose(max_pause_s=0.6)
    with ExitStack() as stack:
        writer, beside, reader = (
            stack.enter_context(
                preflight_fleet.fleet.connect("a", autocommit=False, application_name="slow")
            )
            for _ in range(3)
        )
        writer.execute("INSERT INTO shard2.photos (user_id) VALUES (1)")
        beside.execute("INSERT INTO shard0.photos (user_id) VALUES (1)")  # which stays
        reader.execute("SELECT * FROM shard2.photos")
        wait_for(lambda: age(preflight_fleet, reader.info.backend_pid) > 0.65)
        told = preflight_fleet.only("old_transactions", "source")
        assert str(writer.info.backend_pid) in told
        assert f"pid {beside.info.backend_pid} " not in told
        preflight_fleet.choose(max_pause_s=60)
        assert preflight_fleet.refused(part="source") == {}
        writer.rollback()
        preflight_fleet.choose(max_pause_s=0.6)
        assert preflight_fleet.refused(part="source") == {}  # nobody waits for the reader
        for session in (beside, reader):
            session.rollback()


def test_a_login_role_that_may_not_do_what_a_move_does(preflight_fleet: Movable) -> None:
    topology = preflight_fleet.topology
    topology = dataclasses.replace(
        topology, database=dataclasses.replace(topology.database, user="limited")
    )
    with preflight_fleet.having(
        "CREATE ROLE limited LOGIN", "DROP OWNED BY limited; DROP ROLE limited"
    ):
        preflight_fleet.fleet.execute(
            "a",
            f"GRANT CONNECT ON DATABASE {preflight_fleet.fleet.database} TO limited;"
            "GRANT USAGE ON SCHEMA shardctl, shard0, shard1, shard2, shard3 TO limited;"
            "GRANT SELECT ON ALL TABLES IN SCHEMA shardctl TO limited",
        )
        told = preflight_fleet.refused(topology, part="source")["rights"]
    for right in ("REPLICATION", "pg_monitor", "pg_promote", "shardctl.move", "shard0.photos"):
        assert right in told
