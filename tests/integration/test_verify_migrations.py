"""`verify`: migrations that did not run, are unknown, or have changed since."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.checks.check import Severity
from shardctl.fanout import Silent
from shardctl.provision import fleet
from tests.fixtures.fleets.verify import told, verify

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.rolled_back import RolledBack


PHOTOS = "0001_photos.sql"


def test_a_deleted_row_is_an_error_of_its_shard_alone(rolled_back: RolledBack) -> None:
    rolled_back.execute("a", "DELETE FROM shardctl.migration WHERE shard = 2")
    [finding] = rolled_back.verify()
    assert told([finding]) == [("migrations", "pending", None, (2,), PHOTOS)]
    assert finding.severity is Severity.error
    checksum = rolled_back.query("a", "SELECT DISTINCT checksum FROM shardctl.migration")[0][0]
    assert f"2, '{PHOTOS}', '{checksum}'" in finding.hint


def test_a_migration_that_ran_in_some_shards_explains_their_structure(fleet_healthy: Fleet) -> None:
    fleet_healthy.migration("0002_likes.sql", "CREATE TABLE likes (n int);")
    plan = fleet.plan_migrate(fleet_healthy.topology())
    fleet.carry_out(plan, fleet.Options(), Silent())
    for shard in range(4, 8):
        fleet_healthy.execute("b", f"DROP TABLE shard{shard}.likes")
    fleet_healthy.execute("b", "DELETE FROM shardctl.migration WHERE file = '0002_likes.sql'")
    [finding] = verify(fleet_healthy)
    assert told([finding]) == [("migrations", "pending", None, (4, 5, 6, 7), "0002_likes.sql")]
    assert finding.severity is Severity.error
