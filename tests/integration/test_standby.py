"""Clones that follow, are promoted and opened up, on real servers that make it hard."""

from __future__ import annotations

import os
import pwd
import signal
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.hosts import accounts
from shardctl.moves import clone_cutover
from shardctl.postgres import configuration, standby
from shardctl.provision import fleet as provision
from tests.fixtures.moves.own import lose
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.clones import (
    Cloning,
    answer,
    fill,
    is_barred,
    log_in,
    photos,
    shown,
    soon,
)
from tests.fixtures.servers.postgres import SUPERUSER, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.moves.own import Lab
    from tests.fixtures.servers.postgres import PgServer, StartServer

LOCAL = {"options": "-c synchronous_commit=local"}
"""For sessions with a server that waits for a standby that is not there."""


def test_a_promoted_clone_that_was_killed_starts_barred(cloning: Cloning) -> None:
    target = cloning.start()
    cloning.promote(target)
    cloning.clone.server.stop(mode="immediate")
    assert standby.start(cloning.clone) == "started"
    assert is_barred(cloning)
    cloning.open_up(cloning.at_target())
    assert not is_barred(cloning)


@pytest.fixture(scope="module")
def hostile(pg_server: StartServer, session_directory: Path) -> Iterator[tuple[PgServer, Path]]:
    """A server whose configuration would do harm in a clone, and where it archives."""
    archive = session_directory / "archive"
    archive.mkdir()
    if (account := accounts.server_account(None)) is not None:
        os.chown(archive, pwd.getpwnam(account).pw_uid, -1)
    server = pg_server(
        {
            "archive_mode": "on",
            "archive_command": f"cp %p {archive}/%f",
            "synchronous_standby_names": "nobody",
            "max_wal_size": "32MB",
            "min_wal_size": "32MB",
            "max_standby_streaming_delay": "-1",
            "max_connections": "30",
        }
    )
    with server.connect(**LOCAL) as session:
        for name, value in _HARMFUL.items():
            session.execute(f"ALTER SYSTEM SET {name} = '{value}'")
    server.stop()
    server.start()
    fill(server, **LOCAL)
    yield server, archive
    server.stop("immediate")


_HARMFUL = {
    "synchronous_standby_names": "nobody",
    "archive_mode": "on",
    "hot_standby": "off",
    "hot_standby_feedback": "on",
    "max_standby_streaming_delay": "-1",
    "max_standby_archive_delay": "-1",
    "recovery_min_apply_delay": "1h",
    "restore_command": "cp /nowhere/%f %p",
    "archive_cleanup_command": "false",
    "recovery_target_timeline": "current",
    "primary_conninfo": "host=192.0.2.1 password=of-another-time",
    "primary_slot_name": "ghost",
    "cluster_name": "impostor",
    "work_mem": "3MB",
    "statement_timeout": "77s",
}


@pytest.fixture
def cloning_hostile(hostile: tuple[PgServer, Path], server_directory: Path) -> Iterator[Cloning]:
    made = Cloning(hostile[0], server_directory)
    yield made
    made.end()


def test_the_overrides_win_over_a_hostile_configuration(
    cloning_hostile: Cloning, hostile: tuple[PgServer, Path]
) -> None:
    cloning, (server, archive) = cloning_hostile, hostile
    assert cloning.ask("SHOW archive_mode") == "on"
    target = cloning.start()
    standby.require_closed(cloning.clone, target, SUPERUSER)
    names = list(configuration.OVERRIDES)
    rows = target.execute("SELECT name, setting FROM pg_settings WHERE name = ANY (%s)", [names])
    in_force = {"archive_command": "(disabled)", "default_transaction_read_only": "off"}
    assert dict(rows.fetchall()) == {
        **configuration.OVERRIDES,
        **in_force,
    }  # the latter is ours alone
    with server.connect(**LOCAL) as session:
        session.execute("INSERT INTO photos VALUES (-3, 'through all that')")
    cloning.promote(target)
    # With the source's synchronous_standby_names this would wait forever.
    target.execute("SET statement_timeout = '5s'")
    target.execute("INSERT INTO public.photos VALUES (-4, 'without waiting')")
    target.execute("DELETE FROM public.photos WHERE id = -4")
    assert photos(target) == photos(cloning.at_source())

    opened = cloning.open_up(target)
    assert "archive_mode" not in opened
    visitor = log_in(cloning)
    given = ("cluster_name", "work_mem", "statement_timeout", "max_connections", "max_wal_size")
    assert shown(visitor, *given) == ["c", "3MB", "77s", "30", "32MB"]
    kept = ("archive_mode", "archive_command", "synchronous_standby_names", "restore_command")
    assert shown(target, *kept) == ["off", "(disabled)", "", ""]
    target.execute("SELECT pg_switch_wal()")
    target.execute("CHECKPOINT")
    assert [file.name for file in archive.glob("00000002*")] == []
    for file in cloning.data.rglob("*"):
        assert not file.is_file() or b"of-another-time" not in file.read_bytes()
    configured = [file.read_text() for file in cloning.data.glob("*.conf")]
    assert not any(str(archive) in text for text in configured)


def test_a_promotion_that_takes_too_long_is_an_error_and_may_still_happen(
    cloning: Cloning,
) -> None:
    target = cloning.start()
    startup = answer(target, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'startup'")
    os.kill(startup, signal.SIGSTOP)
    try:
        with raises_code("clone_not_promoted") as late:
            standby.promote(target, soon(0.3))
        assert late.value.exit_code == 3
    finally:
        os.kill(startup, signal.SIGCONT)
    standby.promote(target, soon(30))
    assert not standby.in_recovery(target)


@pytest.mark.long
def test_a_promoted_clone_takes_no_write_until_it_has_claimed(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its `database.user` can log in there; what it forces through is reported, as far as known."""
    monkeypatch.setattr(clone_cutover, "claim", lose)
    fleet_own.stopped([2, 3], "c")
    monkeypatch.undo()
    put = "INSERT INTO shard0.photos (id, user_id) VALUES (1, 1)"
    with fleet_own.connect("c") as session:
        assert session.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            session.execute(put)
        session.execute("SET default_transaction_read_only = off")
        session.execute(put)
        with raises_code("node_unfit"):
            provision.plan_init(fleet_own.topology)
    fleet_own.resume()
    assert any("shard0__retired" in one for one in fleet_own.notices)
    assert fleet_own.put(2)
    assert fleet_own.ask("c", "SHOW default_transaction_read_only") == [("off",)]
    assert fleet_own.problems() == []


def test_a_position_that_is_not_replayed_in_time_is_an_error(cloning: Cloning) -> None:
    target = cloning.start()
    target.execute("SELECT pg_wal_replay_pause()")
    wait_for(lambda: answer(target, "SELECT pg_get_wal_replay_pause_state()") == "paused")
    cloning.at_source().execute("INSERT INTO photos VALUES (-9, 'not seen yet')")
    lsn = str(cloning.ask("SELECT pg_current_wal_flush_lsn()"))
    with raises_code("clone_not_replayed", match=lsn):
        standby.replayed(target, lsn, soon(0.2))
    target.execute("SELECT pg_wal_replay_resume()")
    standby.replayed(target, lsn, soon())
