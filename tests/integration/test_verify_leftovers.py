"""`verify --check leftovers`: what somebody forgot on a node. And `clock`, on one machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fixtures.fleets.verify import told, verify

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet


def test_an_inactive_slot_is_found_with_what_it_holds_back(fleet_8: Fleet) -> None:
    fleet_8.execute("b", "SELECT pg_create_physical_replication_slot('left_over', true)")
    try:
        (finding,) = verify(fleet_8)
    finally:
        fleet_8.execute("b", "SELECT pg_drop_replication_slot('left_over')")
    assert told([finding]) == [("leftovers", "slot_inactive", "b", (), "left_over")]
    assert finding.severity.value == "warning"


def test_a_prepared_transaction_is_found(fleet_8: Fleet) -> None:
    gid = "it's 100% left"
    with fleet_8.connect("a") as connection:
        connection.execute("BEGIN; INSERT INTO shard1.photos (user_id) VALUES (1)")
        connection.execute("PREPARE TRANSACTION 'it''s 100% left'")
        try:
            (finding,) = verify(fleet_8)
            # Another database's is that one's business.
            with fleet_8.servers["a"].connect() as other:
                other.execute("BEGIN; CREATE TABLE t (); PREPARE TRANSACTION 'elsewhere'")
                assert len(verify(fleet_8)) == 1
                other.execute("ROLLBACK PREPARED 'elsewhere'")
        finally:
            connection.execute("ROLLBACK PREPARED 'it''s 100% left'")
    assert told([finding]) == [("leftovers", "prepared_transaction", "a", (), gid)]
