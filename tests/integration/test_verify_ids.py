"""`verify --check ids`: ids that their shard cannot have made, and `--deep`: all rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.ids.layout import Layout
from tests.fixtures.fleets.verify import told, verify

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

OF_SHARD_6 = Layout().encode(1_400_000_000_000, 6)
KEYED = "-- shardctl: key photos.user_id"


def insert(fleet: Fleet, node: str, schema: str, id_: int, user: int) -> None:
    fleet.execute(node, f"INSERT INTO {schema}.photos VALUES ({id_}, {user})")


@pytest.fixture
def keyed(new_fleet: Fleet) -> Fleet:
    """Give a healthy fleet of 8 shards, the key of whose photos a migration names."""
    new_fleet.migration("0002_keys.sql", f"{KEYED}\n")
    new_fleet.copy()
    return new_fleet


def fill(fleet: Fleet) -> None:
    for shard in range(8):
        fleet.execute(
            "a" if shard < 4 else "b",
            f"INSERT INTO shard{shard}.photos (user_id)"
            f" SELECT {shard} + 8 * i FROM generate_series(-5, 5) AS i",
        )


def test_a_row_with_another_shards_id_is_found(keyed: Fleet) -> None:
    fill(keyed)
    insert(keyed, "a", "shard2", OF_SHARD_6, 2)
    (finding,) = verify(keyed)
    assert told([finding]) == [("ids", "other_shard", "a", (2,), "photos")]
    assert str(OF_SHARD_6) in finding.actual


def test_ids_that_nobody_can_have_made_are_found(keyed: Fleet) -> None:
    now_ms = keyed.query("a", "SELECT extract(epoch FROM now())::bigint * 1000")[0][0]
    insert(keyed, "a", "shard2", Layout().encode(now_ms + 5_000, 2), 2)  # a burst's lead
    assert verify(keyed) == []
    insert(keyed, "a", "shard2", -5, 2)
    insert(keyed, "a", "shard3", Layout().encode(now_ms + 60_000, 3), 3)
    for deep in (False, True):
        (finding,) = verify(keyed, "ids", deep=deep)
        assert told([finding]) == [("ids", "not_generated", "a", (2, 3), "photos")]
        assert ("2 rows in all" in finding.actual) == deep


def test_deep_finds_rows_of_other_keys(keyed: Fleet) -> None:
    fill(keyed)
    keyed.execute("a", "INSERT INTO shard3.photos (user_id) VALUES (11), (-1), (-5), (12)")
    assert verify(keyed) == []
    (finding,) = verify(keyed, deep=True)
    assert told([finding]) == [("ids", "other_key", "a", (3,), "photos")]
    assert "key -1 in shard 3 belongs to shard 7; 2 rows in all" in finding.actual


def test_deep_counts_ids_of_other_shards_on_all_nodes(keyed: Fleet) -> None:
    insert(keyed, "b", "shard6", OF_SHARD_6, 6)
    insert(keyed, "a", "shard2", OF_SHARD_6, 6)
    insert(keyed, "a", "shard2", OF_SHARD_6 + 1, 6)
    insert(keyed, "b", "shard5", 7000 << 10, 5)
    (finding,) = verify(keyed, deep=True)
    assert told([finding]) == [("ids", "other_shard", None, (2, 5), "photos")]
    assert f"id {OF_SHARD_6} in shard 2, made for shard 6; 3 rows in all" in finding.actual


def test_a_table_that_is_locked_is_told_and_the_others_are_read(keyed: Fleet) -> None:
    insert(keyed, "a", "shard2", OF_SHARD_6, 2)
    with keyed.connect("a", autocommit=False) as other:
        other.execute("LOCK TABLE shard1.photos")
        for deep in (False, True):
            findings = verify(keyed, "ids", deep=deep)
            assert told(findings) == [
                ("ids", "locked", "a", (1,), "photos"),
                ("ids", "other_shard", "a", (2,), "photos"),
            ]
            assert findings[0].severity.value == "warning"
        other.rollback()
