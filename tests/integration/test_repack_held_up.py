"""`repack` among others: who is in its way is named and left alone, and it stops anywhere."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.maintenance import repack_look
from tests.fixtures.servers import wait_for

if TYPE_CHECKING:
    from tests.fixtures.repacking import Repacking


def test_a_table_in_use_is_given_up_and_its_user_left_alone(repacking: Repacking) -> None:
    repacking.bloat(0)
    repacking.bloat(5)  # on the other node: here it would wait for the reader's transaction
    file = repacking.file(0)
    plan = repacking.plan(wait_timeout=1)
    with repacking.reader() as reader:
        pid = reader.info.backend_pid
        reader.execute("SELECT FROM shard0.photos LIMIT 1")
        result = repacking.carry_out(plan)
        reader.execute("SELECT FROM shard0.photos LIMIT 1")
    assert result.error is not None
    assert result.error.exit_code == 3
    told = f"it was in use for more than 1 s by session {pid} (reader)"
    assert list(result.left.values()) == [told]
    assert f"node a: shard0.photos: {told}" in result.error.message
    assert [one.candidate.name for one in result.repacked] == ["shard5.photos"]
    assert repacking.file(0) == file
    assert repacking.leftovers() == []
    assert repacking.events()[-1] == "unfinished: 0 of 1 tables"
    # It does only the rest.
    assert [one.name for one in repacking.plan().chosen] == ["shard0.photos"]
    assert repacking.carry_out(repacking.plan()).error is None


def test_a_table_that_comes_into_use_before_the_swap_is_given_up_without_a_trace(
    repacking: Repacking,
) -> None:
    repacking.bloat(0)
    rows = repacking.rows(0)
    plan = repacking.plan(0, wait_timeout=1)
    with repacking.reader() as old, repacking.reader() as reader:
        old.execute("SELECT 1")
        with repacking.at_work_in_thread(plan) as results:
            repacking.copied()
            reader.execute("SELECT FROM shard0.photos LIMIT 1")
            old.rollback()
            wait_for(lambda: repacking.programs() == [])
            # What is left of it can be dropped only when nobody reads any more.
            reader.rollback()
    (result,) = results
    assert result.error is not None
    assert "it was in use for more than 1 s by session" in result.error.message
    assert repacking.file(0) == plan.chosen[0].table.file
    assert repacking.leftovers() == []
    assert repacking.rows(0) == rows


def test_terminate_ends_who_is_in_the_way(repacking: Repacking) -> None:
    repacking.bloat(0)
    plan = repacking.plan(0, wait_timeout=1, terminate=True)
    with repacking.reader() as reader:
        reader.execute("SELECT FROM shard0.photos LIMIT 1")
        result = repacking.carry_out(plan)
        with pytest.raises(psycopg.OperationalError):
            reader.execute("SELECT")
    assert result.error is None
    assert repacking.file(0) != plan.chosen[0].table.file


def test_it_says_for_whose_transaction_it_waits_and_waits(repacking: Repacking) -> None:
    repacking.bloat(0)
    plan = repacking.plan(0)
    with repacking.reader() as old:
        old.execute("SELECT 1")
        pid = old.info.backend_pid
        with repacking.at_work_in_thread(plan) as results:
            wait_for(lambda: repacking.notices)
            old.rollback()
    who = f"session {pid} (reader)"
    told = f"node a: shard0.photos waits until {who} has ended its transaction"
    assert repacking.notices == [told]
    assert results[0].error is None


def test_a_transaction_that_is_open_for_long_is_told_with_the_plan(
    repacking: Repacking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repack_look, "_LONG_S", 0)
    with repacking.reader() as old:
        old.execute("SELECT 1")
        done = repacking.repack("0", "--dry-run")
        told = f"note: node a: session {old.info.backend_pid} (reader) is in a transaction for 0 s"
        old.rollback()
    assert told in done.stderr


def test_ctrl_c_gives_up_the_table_at_work_and_the_same_command_does_the_rest(
    repacking: Repacking,
) -> None:
    repacking.bloat(0, rows=16_000)
    repacking.bloat(1)
    files = repacking.file(0), repacking.file(1)
    rows = repacking.rows(0)
    with repacking.reader() as old:
        old.execute("SELECT 1")
        with repacking.start("0-1") as command:
            repacking.copied()
            command.send_signal(signal.SIGINT)
            _, errors = command.communicate(timeout=30)
        assert command.returncode == 130
        assert "interrupted: 0 of 2 tables are repacked, the others as they were" in errors
        assert "run the same command again" in errors
        old.rollback()
    assert (repacking.file(0), repacking.file(1)) == files
    assert repacking.leftovers() == []
    assert repacking.programs() == []
    assert repacking.rows(0) == rows
    done = repacking.repack("0-1", "--yes")
    assert done.returncode == 0, done.stderr
    assert "2 tables repacked" in done.stderr
    assert repacking.rows(0) == rows


def test_ctrl_c_while_it_waits_for_a_lock_stops_at_once(repacking: Repacking) -> None:
    repacking.bloat(0)
    file = repacking.file(0)
    with repacking.reader() as reader:
        reader.execute("SELECT FROM shard0.photos LIMIT 1")
        with repacking.start("0", "--wait-timeout", "600") as command:
            wait_for(lambda: repacking.at_work() == 2)
            command.send_signal(signal.SIGINT)
            command.communicate(timeout=30)
        assert command.returncode == 130
        reader.rollback()
    assert repacking.file(0) == file
    assert repacking.leftovers() == []


def test_a_pg_repack_that_somebody_else_runs_is_left_alone(repacking: Repacking) -> None:
    repacking.bloat(0)
    plan = repacking.plan(0)
    with repacking.reader() as old:
        old.execute("SELECT 1")
        with repacking.at_work_in_thread(plan) as results:
            repacking.copied()
            there = repacking.leftovers()
            second = repacking.plan(1)
            assert second.nodes == []
            assert second.leftovers == {"a": ()}
            assert repacking.leftovers() == there
            old.rollback()
    assert there
    assert results[0].error is None
