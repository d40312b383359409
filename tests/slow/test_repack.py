"""`repack`: what it chooses and refuses, and that tables are as they were, but smaller."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from shardctl.maintenance import repack
from tests.fixtures.fleets.fleet import open_move
from tests.fixtures.fleets.retired import Pruned, changed
from tests.fixtures.refusals import raises_code

if TYPE_CHECKING:
    from tests.fixtures.fleets.bloated import Repacking


def test_it_gives_space_back_and_changes_no_row(fleet_bloated: Repacking) -> None:
    fleet_bloated.bloat(2)
    before, rows = fleet_bloated.size(2), fleet_bloated.rows(2)
    done = fleet_bloated.repack("2", "--yes", "-o", "json")
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)["tables"]
    assert fleet_bloated.rows(2) == rows
    assert fleet_bloated.size(2) < before / 3
    assert (told["state"], told["size_bytes"], told["after_bytes"]) == (
        "repacked", before, fleet_bloated.size(2),
    )  # fmt: skip
    # The estimate was made before; it leaves out TOAST and the other forks.
    assert abs(before - fleet_bloated.size(2) - told["bloat_bytes"]) < 0.1 * before
    assert fleet_bloated.leftovers() == []
    sizes = f"{before} -> {fleet_bloated.size(2)} bytes"
    assert fleet_bloated.events() == [
        f"repacked file {fleet_bloated.file(2)}: shard2.photos, {sizes}",
        "done: 1 of 1 tables",
    ]


def test_a_table_in_use_is_given_up_and_its_user_left_alone(fleet_bloated: Repacking) -> None:
    fleet_bloated.bloat(0)
    fleet_bloated.bloat(5)  # on the other node: here it would wait for the reader's transaction
    file = fleet_bloated.file(0)
    plan = fleet_bloated.plan(wait_timeout_s=1)
    with fleet_bloated.reader() as reader:
        reader.execute("SELECT FROM shard0.photos LIMIT 1")
        result = fleet_bloated.carry_out(plan)
        reader.execute("SELECT FROM shard0.photos LIMIT 1")
    assert result.error is not None
    assert result.error.exit_code == 3
    assert len(result.left) == 1
    assert [one.candidate.name for one in result.repacked] == ["shard5.photos"]
    assert fleet_bloated.file(0) == file
    assert fleet_bloated.leftovers() == []
    assert fleet_bloated.events()[-1] == "unfinished: 0 of 1 tables"
    # It does only the rest.
    assert [one.name for one in fleet_bloated.plan().chosen] == ["shard0.photos"]
    assert fleet_bloated.carry_out(fleet_bloated.plan()).error is None


_VERSION = """
CREATE OR REPLACE FUNCTION repack.{}() RETURNS text LANGUAGE sql AS $$SELECT 'pg_repack 1.4.7'$$
"""


def test_what_keeps_the_extension_from_its_work_is_refused(fleet_bloated: Repacking) -> None:
    fleet = fleet_bloated.fleet
    fleet.execute("b", "DROP EXTENSION pg_repack")
    with raises_code("extension_missing", match="node b"):
        fleet_bloated.plan()
    # Shards of other nodes are none of its business.
    assert fleet_bloated.repack("0-3", "--dry-run").returncode == 0
    fleet.execute("a", _VERSION.format("version_sql"))
    with raises_code("extension_broken", match=r"1\.4\.7"):
        fleet_bloated.plan(0)
    fleet.execute("a", _VERSION.format("version"))
    with raises_code("program_missing", match=r"1\.4\.7"):
        fleet_bloated.plan(0)


def test_a_role_that_is_no_superuser_is_refused(fleet_bloated: Repacking) -> None:
    fleet = fleet_bloated.fleet
    fleet.execute("a", "CREATE ROLE plain LOGIN")
    fleet.execute("a", "GRANT pg_read_all_data, pg_read_all_settings TO plain")
    fleet.execute("a", "GRANT USAGE ON SCHEMA repack TO plain")
    fleet.execute("a", f"GRANT CONNECT ON DATABASE {fleet.database} TO plain")
    topology = fleet.topology()
    database = dataclasses.replace(topology.database, user="plain")
    try:
        with raises_code("superuser_needed", match="plain"):
            repack.plan(
                dataclasses.replace(topology, database=database),
                [0],
                fleet_bloated.plan(0).options,
            )
    finally:
        fleet.execute("a", "DROP OWNED BY plain")
        fleet.execute("a", "DROP ROLE plain")


def test_shards_elsewhere_and_a_move_that_has_not_ended_are_refused(
    fleet_bloated: Repacking,
) -> None:
    fleet_bloated.bloat(0)
    plan = fleet_bloated.plan()
    file = fleet_bloated.file(0)
    with (
        changed(Pruned(fleet_bloated.fleet), "a", "shardctl.map.node", "b", "shard = 2"),
        raises_code("shards_elsewhere", match="shards 2 "),
    ):
        fleet_bloated.plan()
    with fleet_bloated.fleet.connect("a") as session:
        open_move(session, "5f3a9c1e", [2], way=("a", "c"))
    try:
        with raises_code("move_unfinished", match="5f3a9c1e"):
            fleet_bloated.plan()
        with raises_code("move_unfinished", match="5f3a9c1e"):
            fleet_bloated.carry_out(plan)
        fleet_bloated.plan(4, 5)  # of node b, which has no part in it
    finally:
        fleet_bloated.fleet.execute("a", "TRUNCATE shardctl.move CASCADE")
    assert fleet_bloated.file(0) == file
