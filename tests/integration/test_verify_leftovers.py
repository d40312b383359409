"""`verify --check leftovers`: what somebody forgot on a node. And `clock`, on one machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.checks import leftovers
from tests.fixtures.fleets.verify import told, verify
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    import pytest

    from tests.fixtures.fleets.fleet import Fleet


def test_an_inactive_slot_is_found_with_what_it_holds_back(fleet_healthy_shared: Fleet) -> None:
    fleet_healthy_shared.execute(
        "b", "SELECT pg_create_physical_replication_slot('left_over', true)"
    )
    try:
        (finding,) = verify(fleet_healthy_shared)
    finally:
        fleet_healthy_shared.execute("b", "SELECT pg_drop_replication_slot('left_over')")
    assert told([finding]) == [("leftovers", "slot_inactive", "b", (), "left_over")]
    assert finding.severity.value == "warning"


def test_a_prepared_transaction_is_found(fleet_healthy_shared: Fleet) -> None:
    gid = "it's 100% left"
    with fleet_healthy_shared.connect("a") as connection:
        connection.execute("BEGIN; INSERT INTO shard1.photos (user_id) VALUES (1)")
        connection.execute("PREPARE TRANSACTION 'it''s 100% left'")
        try:
            (finding,) = verify(fleet_healthy_shared)
            # Another database's is that one's business.
            with fleet_healthy_shared.servers["a"].connect() as other:
                other.execute("BEGIN; CREATE TABLE t (); PREPARE TRANSACTION 'elsewhere'")
                assert len(verify(fleet_healthy_shared)) == 1
                other.execute("ROLLBACK PREPARED 'elsewhere'")
        finally:
            connection.execute("ROLLBACK PREPARED 'it''s 100% left'")
    assert told([finding]) == [("leftovers", "prepared_transaction", "a", (), gid)]


def test_sessions_idle_in_transaction_are_told_by_application(
    fleet_healthy_shared: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def idle() -> int:
        statement = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
        return int(
            fleet_healthy_shared.query("a", f"{statement} AND datname = current_database()")[0][0]
        )

    names = {"autocommit": False, "application_name": "100% web"}
    with (
        fleet_healthy_shared.connect("a", **names) as first,
        fleet_healthy_shared.connect("a", **names) as second,
    ):
        first.execute("SELECT 'secret' FROM shard1.photos")
        second.execute("SELECT 'secret'")
        wait_for(lambda: idle() == 2)
        assert verify(fleet_healthy_shared) == []
        monkeypatch.setattr(leftovers, "IDLE_S", 0)
        (finding,) = verify(fleet_healthy_shared)
        assert str(first.info.backend_pid) in finding.actual
        assert "secret" not in str(finding)
    assert told([finding]) == [("leftovers", "idle_in_transaction", "a", (), "100% web")]
