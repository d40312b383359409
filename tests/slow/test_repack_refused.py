"""`repack`: what it refuses before it has done anything, each by name."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from shardctl import meter
from shardctl.maintenance import repack, repack_look, repack_program
from shardctl.state import journal
from shardctl.state.journal import MoveState
from tests.fixtures.fleets.retired import Pruned, changed
from tests.fixtures.refusals import raises_code

if TYPE_CHECKING:
    import pytest

    from tests.fixtures.fleets.bloated import Repacking

_VERSION = """
CREATE OR REPLACE FUNCTION repack.{}() RETURNS text LANGUAGE sql AS $$SELECT 'pg_repack 1.4.7'$$
"""


def test_a_node_without_the_extension_is_named_with_what_to_type(fleet_bloated: Repacking) -> None:
    fleet_bloated.fleet.execute("b", "DROP EXTENSION pg_repack")
    with raises_code("extension_missing", match="node b: the extension pg_repack") as refused:
        fleet_bloated.plan()
    assert "pg_repack" in refused.value.hint
    done = fleet_bloated.repack("--yes", "-o", "json")
    assert done.returncode == 1
    assert "node b" in json.loads(done.stdout)["errors"][0]["message"]
    # Shards of other nodes are none of its business.
    assert fleet_bloated.repack("0-3", "--yes").returncode == 0


def test_an_extension_of_two_versions_is_refused(fleet_bloated: Repacking) -> None:
    fleet_bloated.fleet.execute("a", _VERSION.format("version_sql"))
    with raises_code(
        "extension_broken", match=r"library is pg_repack .*, its SQL pg_repack 1\.4\.7"
    ):
        fleet_bloated.plan(0)


def test_a_version_for_which_this_machine_has_no_program_is_refused(
    fleet_bloated: Repacking,
) -> None:
    for function in ("version", "version_sql"):
        fleet_bloated.fleet.execute("a", _VERSION.format(function))
    with raises_code(
        "program_missing", match=r"the pg_repack extension is version pg_repack 1\.4\.7"
    ) as refused:
        fleet_bloated.plan(0)
    assert "pg_repack" in refused.value.message


def test_a_role_that_is_no_superuser_is_refused(fleet_bloated: Repacking) -> None:
    fleet = fleet_bloated.fleet
    fleet.execute("a", "CREATE ROLE plain LOGIN")
    fleet.execute("a", "GRANT pg_read_all_data, pg_read_all_settings TO plain")
    fleet.execute("a", "GRANT USAGE ON SCHEMA repack TO plain")
    fleet.execute("a", f"GRANT CONNECT ON DATABASE {fleet.database} TO plain")
    topology = fleet.topology()
    database = dataclasses.replace(topology.database, user="plain")
    topology = dataclasses.replace(topology, database=database)
    try:
        options = fleet_bloated.plan(0).options
        with raises_code("superuser_needed", match="node a: plain is not a superuser"):
            repack.plan(topology, [0], options)
        may_try = dataclasses.replace(options.settings, superuser_check=False)
        options = dataclasses.replace(options, settings=may_try)
        if repack_program.serves_owners(fleet_bloated.version()):
            assert repack.plan(topology, [0], options).refused == []
        else:
            # It would fail to clean up after itself, and try that for good.
            with raises_code("superuser_needed", match="requires one"):
                repack.plan(topology, [0], options)
    finally:
        fleet.execute("a", "DROP OWNED BY plain")
        fleet.execute("a", "DROP ROLE plain")


def test_a_topology_that_the_map_contradicts_is_refused(fleet_bloated: Repacking) -> None:
    made = Pruned(fleet_bloated.fleet)
    with (
        changed(made, "a", "shardctl.map.node", "b", "shard = 2"),
        raises_code("shards_elsewhere", match="gives shards 2 to node a, which does not own them"),
    ):
        fleet_bloated.plan()


def begin_move(fleet_bloated: Repacking) -> None:
    with fleet_bloated.fleet.connect("a") as session:
        journal.open_move(
            session,
            move="5f3a9c1e",
            method="clone",
            source="a",
            target="c",
            shards=(2,),
            schemas=("shard2",),
            retired=("shard2__retired_5f3a9c1e",),
            plan={"options": {"retain_s": 0}},
        )


def test_a_node_whose_move_has_not_ended_is_refused_before_and_after_the_plan(
    fleet_bloated: Repacking,
) -> None:
    fleet_bloated.bloat(0)
    plan = fleet_bloated.plan()
    file = fleet_bloated.file(0)
    begin_move(fleet_bloated)
    try:
        with raises_code("move_unfinished", match="move 5f3a9c1e of shards .* is unfinished"):
            fleet_bloated.plan()
        with raises_code("move_unfinished", match="move 5f3a9c1e of shards .* is unfinished"):
            fleet_bloated.carry_out(plan)
        fleet_bloated.plan(4, 5)  # of node b, which has no part in it
        with fleet_bloated.fleet.connect("a") as session:
            journal.advance(session, "5f3a9c1e", [MoveState.reserved], MoveState.aborted)
        fleet_bloated.plan()
    finally:
        fleet_bloated.fleet.execute("a", "TRUNCATE shardctl.move CASCADE")
    assert fleet_bloated.file(0) == file


def test_tables_that_the_disk_has_no_room_for_are_refused(
    fleet_bloated: Repacking, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet_bloated.bloat(0)
    fleet_bloated.bloat(1, rows=16_000)
    size = fleet_bloated.size(0)
    monkeypatch.setattr(repack_look, "free_bytes", lambda *_: 2 * size)
    verdicts = fleet_bloated.verdicts(0, 1)
    assert verdicts["shard0.photos"] == "repack"
    assert verdicts["shard1.photos"].startswith(
        f"repacking it needs {meter.size(2 * fleet_bloated.size(1))} of free disk"
    )
