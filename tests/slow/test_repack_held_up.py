"""`repack` among others: who is in its way is named and left alone, and it stops anywhere."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.bloated import Repacking

_GAVE_UP = """
SELECT FROM pg_stat_activity
WHERE application_name = 'pg_repack' AND query ~ 'repack_drop' AND wait_event_type = 'Lock'
"""


def test_a_table_in_use_is_given_up_and_its_user_left_alone(fleet_bloated: Repacking) -> None:
    fleet_bloated.bloat(0)
    fleet_bloated.bloat(5)  # on the other node: here it would wait for the reader's transaction
    file = fleet_bloated.file(0)
    plan = fleet_bloated.plan(wait_timeout=1)
    with fleet_bloated.reader() as reader:
        reader.execute("SELECT FROM shard0.photos LIMIT 1")
        result = fleet_bloated.carry_out(plan)
        reader.execute("SELECT FROM shard0.photos LIMIT 1")
    assert result.error is not None
    assert result.error.exit_code == 3
    [told] = result.left.values()
    assert "timed out" in told
    assert str(told) in result.error.message
    assert [one.candidate.name for one in result.repacked] == ["shard5.photos"]
    assert fleet_bloated.file(0) == file
    assert fleet_bloated.leftovers() == []
    assert fleet_bloated.events()[-1] == "unfinished: 0 of 1 tables"
    # It does only the rest.
    assert [one.name for one in fleet_bloated.plan().chosen] == ["shard0.photos"]
    assert fleet_bloated.carry_out(fleet_bloated.plan()).error is None


def test_a_table_that_comes_into_use_before_the_swap_is_given_up_without_a_trace(
    fleet_bloated: Repacking,
) -> None:
    fleet_bloated.bloat(0)
    rows = fleet_bloated.rows(0)
    plan = fleet_bloated.plan(0, wait_timeout=1)
    with fleet_bloated.reader() as old, fleet_bloated.reader() as reader:
        old.execute("SELECT 1")
        with fleet_bloated.at_work_in_thread(plan) as results:
            fleet_bloated.copied()
            reader.execute("SELECT FROM shard0.photos LIMIT 1")
            old.rollback()
            wait_for(lambda: fleet_bloated.query(0, _GAVE_UP))
            # It cleans up only when no session reads any more.
            reader.rollback()
    (result,) = results
    assert result.error is not None
    assert "timed out" in result.error.message
    assert fleet_bloated.file(0) == plan.chosen[0].table.file
    assert fleet_bloated.leftovers() == []
    assert fleet_bloated.rows(0) == rows


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
            _, errors = command.communicate(timeout=30)
        assert command.returncode == 130
        assert "interrupted: 0 of 2 tables are repacked, the rest are unchanged" in errors
        assert "run the same command again" in errors
        old.rollback()
    assert (fleet_bloated.file(0), fleet_bloated.file(1)) == files
    assert fleet_bloated.leftovers() == []
    assert fleet_bloated.programs() == []
    assert fleet_bloated.rows(0) == rows
    done = fleet_bloated.repack("0-1", "--yes")
    assert done.returncode == 0, done.stderr
    assert fleet_bloated.rows(0) == rows


def test_a_pg_repack_that_somebody_else_runs_is_left_alone(fleet_bloated: Repacking) -> None:
    fleet_bloated.bloat(0)
    plan = fleet_bloated.plan(0)
    with fleet_bloated.reader() as old:
        old.execute("SELECT 1")
        with fleet_bloated.at_work_in_thread(plan) as results:
            fleet_bloated.copied()
            there = fleet_bloated.leftovers()
            second = fleet_bloated.plan(1)
            assert second.nodes == []
            assert second.leftovers == {"a": ()}
            assert fleet_bloated.leftovers() == there
            old.rollback()
    assert there
    assert results[0].error is None
