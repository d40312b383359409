"""`verify`: migrations that did not run, are unknown, or have changed since."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.checks.findings import Severity
from shardctl.errors import Problems
from shardctl.fanout import Silent
from shardctl.provision import fleet
from tests.fixtures.verifying import told, verify

if TYPE_CHECKING:
    from tests.fixtures.fleets import Fleet
    from tests.fixtures.servers import PgServer


@pytest.fixture(scope="session")
def two_servers(safe_servers: dict[str, PgServer]) -> dict[str, PgServer]:
    """Let every fleet of this file be one of which all checks together tell nothing."""
    return safe_servers


PHOTOS = "0001_photos.sql"


def test_a_deleted_row_is_an_error_of_its_shard_alone(fleet_8: Fleet) -> None:
    fleet_8.execute("a", "DELETE FROM shardctl.migration WHERE shard = 2")
    [finding] = verify(fleet_8)
    assert told([finding]) == [("migrations", "pending", None, (2,), PHOTOS)]
    assert finding.severity is Severity.error
    assert "shardctl migrate" in finding.hint
    checksum = fleet_8.query("a", "SELECT DISTINCT checksum FROM shardctl.migration")[0][0]
    assert f"2, '{PHOTOS}', '{checksum}'" in finding.hint


def test_rows_deleted_on_two_nodes_are_one_finding(fleet_8: Fleet) -> None:
    for node in "ab":
        fleet_8.execute(node, "DELETE FROM shardctl.migration WHERE shard IN (2, 5)")
    assert told(verify(fleet_8)) == [("migrations", "pending", None, (2, 5), PHOTOS)]


def test_a_new_file_is_a_warning_until_it_has_run(fleet_8: Fleet) -> None:
    fleet_8.migration("0002_likes.sql", "CREATE TABLE likes (n int);")
    [finding] = verify(fleet_8)
    assert told([finding]) == [
        ("migrations", "pending", None, tuple(range(8)), "0002_likes.sql"),
    ]
    assert finding.severity is Severity.warning
    assert finding.hint == "run `shardctl migrate`"


def test_a_migration_that_ran_in_some_shards_explains_their_structure(fleet_8: Fleet) -> None:
    fleet_8.migration("0002_likes.sql", "CREATE TABLE likes (n int);")
    fleet_8.execute("b", "CREATE TABLE public.likes (n int)")
    plan = fleet.plan_migrate(fleet_8.topology())
    try:
        fleet.carry_out(plan, fleet.Options(), Silent())
    except Problems:  # node b refuses
        fleet_8.execute("b", "DROP TABLE public.likes")
    [finding] = verify(fleet_8)
    assert told([finding]) == [("migrations", "pending", None, (4, 5, 6, 7), "0002_likes.sql")]
    assert finding.severity is Severity.error


def test_a_file_that_is_gone_from_the_folder_is_a_warning(fleet_8: Fleet) -> None:
    (fleet_8.directory / "migrations" / PHOTOS).unlink()
    [finding] = verify(fleet_8)
    assert told([finding]) == [("migrations", "unknown_file", None, tuple(range(8)), PHOTOS)]
    assert finding.severity is Severity.warning


def test_a_file_that_changed_after_it_ran_is_an_error(fleet_8: Fleet) -> None:
    fleet_8.migration(PHOTOS, "CREATE TABLE photos (id bigint);")
    [finding] = verify(fleet_8)
    assert told([finding]) == [("migrations", "checksum_differs", None, tuple(range(8)), PHOTOS)]
    assert finding.severity is Severity.error


def test_a_row_with_another_checksum_is_an_error_of_its_shard(fleet_8: Fleet) -> None:
    fleet_8.execute("b", "UPDATE shardctl.migration SET checksum = 'other' WHERE shard = 6")
    assert told(verify(fleet_8)) == [("migrations", "checksum_differs", None, (6,), PHOTOS)]


def test_rows_of_shards_that_live_elsewhere_do_not_count(fleet_8: Fleet) -> None:
    fleet_8.execute(
        "a", "INSERT INTO shardctl.migration (shard, file, checksum) VALUES (6, 'gone.sql', 'x')"
    )
    assert verify(fleet_8) == []
