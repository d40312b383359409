"""Poolers that would let clients down during a cutover: preflight says so before."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.fixtures.pooled import STATS_USER
from tests.fixtures.poolers import _CONFIGURATION
from tests.fixtures.servers import wait_for

if TYPE_CHECKING:
    from tests.fixtures.pooled import AddPooler
    from tests.fixtures.preflights import Movable


def test_a_pooler_that_is_down(pooled_movable: Movable) -> None:
    pooler = pooled_movable.fleet.pg_bouncer
    pooler.stop()
    told = pooled_movable.only("PoolerUnavailable")
    assert told.count(f"pooler p1 (127.0.0.1:{pooler.port}): ") == 1
    assert "Connection refused" in told


def test_a_user_who_may_only_look(pooled_movable: Movable) -> None:
    pooled_movable.fleet.change(admin_user=STATS_USER)
    told = pooled_movable.refused()
    assert "pooler p1: watcher is no admin there" in told["NotAdmin"]


def test_a_file_that_was_edited_or_is_not_the_newest(pooled_movable: Movable) -> None:
    file = pooled_movable.fleet.pg_bouncer.databases_file
    text = file.read_text()
    file.write_text(f"{text}\nmine = host=/tmp\n")
    assert f"pooler p1: {file} was changed by hand" in pooled_movable.only("FileEdited")
    file.unlink()
    told = pooled_movable.only("file_outdated")
    assert "is not what map version 1 says" in told
    assert "`shardctl pgbouncer apply`" in told
    file.write_text(text)
    pooled_movable.check()
    # The file says it, and the pooler has not read it.
    file.write_text("[databases]\n")
    pooled_movable.fleet.pg_bouncer.admin("RELOAD")
    file.write_text(text)
    assert "was not read again since" in pooled_movable.only("file_outdated")


@pytest.mark.parametrize("key", ["query_wait_timeout", "client_login_timeout"])
def test_clients_that_would_not_be_let_wait(pooled_movable: Movable, key: str) -> None:
    pooler = pooled_movable.fleet.pg_bouncer
    pooler.admin(f"SET {key} = 9")
    told = pooled_movable.only(key)
    assert f"{key} is 9 s: clients would get errors before a cutover of 5 s" in told
    assert "set it to 10 or more (0 is never)" in told
    pooled_movable.choose(max_pause_s=3)
    pooled_movable.check()
    pooled_movable.choose(max_pause_s=30)
    pooler.admin(f"SET {key} = 0")
    if key == "client_login_timeout":
        pooler.admin("SET query_wait_timeout = 0")
    pooled_movable.check()


def test_session_pooling(pooled_movable: Movable) -> None:
    pooled_movable.fleet.pg_bouncer.admin("SET pool_mode = session")
    assert "with pool_mode = session" in pooled_movable.only("PoolingUnfit")
    pooled_movable.fleet.change(aliases=("node",))
    told = pooled_movable.refused()
    assert set(told) == {"session_pooling", "file_outdated"}
    assert "until clients disconnect" in told["session_pooling"]


def test_several_processes_at_one_port(
    movable: Movable, tmp_path: Path, pooler_for: AddPooler
) -> None:
    movable.fleet = dataclasses.replace(movable.fleet, directory=tmp_path)
    shared = _CONFIGURATION.replace("pool_mode", "so_reuseport = 1\npool_mode")
    pooler_for(movable.fleet, configuration=shared)
    told = movable.refused()
    assert set(told) == {"file_outdated", "so_reuseport"}
    assert "pooler p1: so_reuseport is on" in told["so_reuseport"]


def test_aliases_that_somebody_holds(pooled_movable: Movable) -> None:
    pooler = pooled_movable.fleet.pg_bouncer
    pooler.admin('PAUSE "shard2"')
    told = pooled_movable.only("paused")
    assert "pooler p1: aliases are paused already: shard2" in told
    assert 'RESUME "shard2"' in told
    pooler.admin('RESUME "shard2"')
    pooler.admin('DISABLE "preflight_a"')
    told = pooled_movable.only("disabled")
    assert "aliases are disabled already: preflight_a" in told
    pooler.admin('ENABLE "preflight_a"')
    pooler.admin('PAUSE "shard0"')  # which stays
    pooled_movable.check()
    pooler.admin('RESUME "shard0"')
    pooler.admin("PAUSE")
    assert "the whole pooler is paused" in pooled_movable.only("paused")
    pooler.admin("RESUME")


def test_a_name_that_the_poolers_host_does_not_know(pooled_movable: Movable) -> None:
    from tests.fixtures.preflights import offer  # its fixtures have to be registered first

    pooled_movable.change(pooler_host="no-such-name.invalid")
    offer(pooled_movable)
    told = pooled_movable.only("target_unresolved")
    assert "its host does not know the name no-such-name.invalid" in told
    pooled_movable.change(pooler_host="localhost")
    offer(pooled_movable)
    pooled_movable.check()


def test_a_host_on_which_no_guard_could_run(
    pooled_movable: Movable, monkeypatch: pytest.MonkeyPatch, server_directory: Path
) -> None:
    folder = server_directory / "bin"
    folder.mkdir()
    folder.chmod(0o755)
    for directory in filter(Path.is_dir, map(Path, os.environ["PATH"].split(":"))):
        for program in directory.iterdir():
            link = folder / program.name
            if program.name not in ("setsid", "awk") and not link.is_symlink():
                link.symlink_to(program)
    monkeypatch.setenv("PATH", str(folder))
    told = pooled_movable.only("guard_programs")
    assert "pooler p1: its host lacks setsid, awk, which the guard needs" in told
    assert shutil.which("psql") is not None


def test_a_transaction_that_would_hold_up_the_pause(pooled_movable: Movable) -> None:
    pooled_movable.choose(max_pause_s=0.6)
    pooler = pooled_movable.fleet.pg_bouncer
    with pooler.connect("shard3", autocommit=False) as client:
        row = client.execute("SELECT pg_backend_pid()").fetchone()
        assert row is not None
        wait_for(
            lambda: pooled_movable.fleet.query(
                "a",
                f"SELECT FROM pg_stat_activity WHERE pid = {row[0]}"
                " AND xact_start < clock_timestamp() - interval '0.7 s'",
            )
        )
        told = pooled_movable.only("old_transactions")
        assert f"older than --max-pause (0.6 s): pid {row[0]} (" in told
        client.rollback()
    pooled_movable.check()
    with pooler.connect("shard0", autocommit=False) as client:  # which stays
        client.execute("SELECT 1")
        wait_for(
            lambda: pooled_movable.fleet.query(
                "a",
                "SELECT FROM pg_stat_activity WHERE datname = 'preflight'"
                " AND xact_start < clock_timestamp() - interval '0.7 s'",
            )
        )
        pooled_movable.check()
        client.rollback()


def test_clients_are_counted_and_a_long_retry_is_told(pooled_movable: Movable) -> None:
    pooler = pooled_movable.fleet.pg_bouncer
    with pooler.connect("shard3"), pooler.connect("preflight_b"):
        facts = pooled_movable.check()
    assert facts.poolers[0].clients == 2
    assert "clients wait 15 s (server_login_retry)" in "\n".join(facts.notes)
    pooler.admin("SET server_login_retry = 1")
    assert "server_login_retry" not in pooled_movable.notes()


def test_several_poolers_are_told_each_by_name(
    pooled_movable: Movable, pooler_for: AddPooler
) -> None:
    pooler_for(pooled_movable.fleet, "p2")
    pooled_movable.fleet.pg_bouncer.admin('PAUSE "shard2"')
    told = pooled_movable.refused()
    assert "pooler p1: aliases are paused" in told["paused"]
    assert "pooler p2: " in told["file_outdated"]
    with pytest.raises(psycopg.errors.OperationalError):
        pooled_movable.fleet.pg_bouncers[1].connect("shard2")
