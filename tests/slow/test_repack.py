"""`repack`: what it chooses and refuses, and that tables are as they were, but smaller."""

from __future__ import annotations

import dataclasses
import json
import signal
from typing import TYPE_CHECKING

from shardctl.maintenance import repack, repack_look
from shardctl.state import journal
from shardctl.state.journal import MoveState
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


def test_what_cannot_be_repacked_is_named_with_the_reason_and_makes_the_exit_code_1(
    fleet_bloated: Repacking,
) -> None:
    fleet_bloated.bloat(0)
    fleet_bloated.bloat(0, "tags")
    fleet_bloated.bloat(0, "seen")
    files = [fleet_bloated.file(0, table) for table in ("tags", "seen")]
    assert fleet_bloated.repack("0", "--dry-run").returncode == 0
    done = fleet_bloated.repack("0", "--yes")
    assert done.returncode == 1
    assert "shard0.tags" in done.stderr
    assert "shard0.seen" in done.stderr
    assert [fleet_bloated.file(0, table) for table in ("tags", "seen")] == files
    assert fleet_bloated.verdicts(0)["shard0.photos"] == "recent"
    again = fleet_bloated.repack("0", "--yes", "-o", "json")
    assert again.returncode == 1
    assert [one["state"] for one in json.loads(again.stdout)["tables"]] == ["refused", "refused"]


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


def test_ctrl_c_gives_up_the_table_at_work_and_the_same_command_does_the_rest(
    fleet_bloated: Repacking,
) -> None:
    fleet_bloated.bloat(0, rows=16_000)
    fleet_bloated.bloat(1)
    files = fleet_bloated.file(0), fleet_bloated.file(1)
    rows = fleet_bloated.rows(0)
    with fleet_bloated.reader() as old:
        old.execute("SELECT 1")
        with fleet_bloated.start("0-1") as command:
            fleet_bloated.copied()
            command.send_signal(signal.SIGINT)
            command.communicate(timeout=30)
        assert command.returncode == 130
        old.rollback()
    assert (fleet_bloated.file(0), fleet_bloated.file(1)) == files
    assert fleet_bloated.leftovers() == []
    assert fleet_bloated.programs() == []
    assert fleet_bloated.rows(0) == rows
    done = fleet_bloated.repack("0-1", "--yes")
    assert done.returncode == 0, done.stderr
    assert fleet_bloated.rows(0) == rows


_VERSION = """
CREATE OR REPLACE FUNCTION repack.{}() RETURNS text LANGUAGE sql AS $$SELECT 'pg_repack 1.4.7'$$
"""


def test_a_node_without_the_extension_is_named_with_what_to_type(fleet_bloated: Repacking) -> None:
    fleet_bloated.fleet.execute("b", "DROP EXTENSION pg_repack")
    with raises_code("extension_missing", match="node b"):
        fleet_bloated.plan()
    done = fleet_bloated.repack("--yes", "-o", "json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["errors"][0]["code"] == "extension_missing"
    # Shards of other nodes are none of its business.
    assert fleet_bloated.repack("0-3", "--yes").returncode == 0


def test_an_extension_of_two_versions_is_refused(fleet_bloated: Repacking) -> None:
    fleet_bloated.fleet.execute("a", _VERSION.format("version_sql"))
    with raises_code("extension_broken", match=r"1\.4\.7"):
        fleet_bloated.plan(0)


def test_a_version_for_which_this_machine_has_no_program_is_refused(
    fleet_bloated: Repacking,
) -> None:
    for function in ("version", "version_sql"):
        fleet_bloated.fleet.execute("a", _VERSION.format(function))
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
    topology = dataclasses.replace(topology, database=database)
    try:
        options = fleet_bloated.plan(0).options
        with raises_code("superuser_needed", match="plain"):
            repack.plan(topology, [0], options)
        options = dataclasses.replace(options, superuser_check=False)
        if repack_look.serves_owners(fleet_bloated.version()):
            assert repack.plan(topology, [0], options).refused == []
        else:
            # It would fail to clean up after itself, and try that for good.
            with raises_code("superuser_needed"):
                repack.plan(topology, [0], options)
    finally:
        fleet.execute("a", "DROP OWNED BY plain")
        fleet.execute("a", "DROP ROLE plain")


def test_a_topology_that_the_map_contradicts_is_refused(fleet_bloated: Repacking) -> None:
    made = Pruned(fleet_bloated.fleet)
    with (
        changed(made, "a", "shardctl.map.node", "b", "shard = 2"),
        raises_code("shards_elsewhere", match="shards 2 "),
    ):
        fleet_bloated.plan()


def test_a_node_whose_move_has_not_ended_is_refused_before_and_after_the_plan(
    fleet_bloated: Repacking,
) -> None:
    fleet_bloated.bloat(0)
    plan = fleet_bloated.plan()
    file = fleet_bloated.file(0)
    with fleet_bloated.fleet.connect("a") as session:
        open_move(session, "5f3a9c1e", [2], way=("a", "c"))
    try:
        with raises_code("move_unfinished", match="5f3a9c1e"):
            fleet_bloated.plan()
        with raises_code("move_unfinished", match="5f3a9c1e"):
            fleet_bloated.carry_out(plan)
        fleet_bloated.plan(4, 5)  # of node b, which has no part in it
        with fleet_bloated.fleet.connect("a") as session:
            journal.advance(session, "5f3a9c1e", [MoveState.reserved], MoveState.aborted)
        fleet_bloated.plan()
    finally:
        fleet_bloated.fleet.execute("a", "TRUNCATE shardctl.move CASCADE")
    assert fleet_bloated.file(0) == file
