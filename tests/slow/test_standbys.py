"""Standbys that do not follow, start or open up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.hosts import files
from shardctl.postgres import clone as clones
from shardctl.postgres import standby
from shardctl.postgres.standby import NotFollowing
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.clones import (
    APP,
    Cloning,
    is_barred,
    shown,
)
from tests.fixtures.servers.postgres import QUICK, SUPERUSER, wait_for

if TYPE_CHECKING:
    from tests.fixtures.servers.clones import Cloning


def test_a_clone_that_lets_others_in_is_not_trusted(cloning: Cloning) -> None:
    target = cloning.start()
    with (cloning.data / "pg_hba.conf").open("a") as file:
        file.write(f"host all {APP} 127.0.0.1/32 trust\n")
    target.execute("ALTER SYSTEM SET max_standby_streaming_delay = '1min'")
    target.execute("SELECT pg_reload_conf()")
    wait_for(lambda: shown(target, "max_standby_streaming_delay") == ["1min"])
    with raises_code("clone_not_closed") as opened:
        standby.require_closed(cloning.clone, target, SUPERUSER)
    assert sorted(opened.value.message.splitlines()[1:]) == [
        "  max_standby_streaming_delay is 60000",
        f"  pg_hba.conf, line 4 accepts {APP}",
    ]


def test_rules_that_the_server_cannot_read_keep_the_clone_closed(cloning: Cloning) -> None:
    target = cloning.start()
    mark, user = cloning.data / clones.MARK, cloning.clone.server.account
    own = mark / clones.HBA
    good = own.read_text()
    own.write_text(good + "host everything nowhere\n")
    cloning.promote(target)
    with raises_code("clone_not_opened", match=r"pg_hba\.conf, line \d+") as closed:
        cloning.open_up(target)
    assert closed.value.exit_code == 3
    assert is_barred(cloning)
    files.write(cloning.clone.server.machine, cloning.data / clones.HBA, good, user=user)
    cloning.open_up(target)
    assert not is_barred(cloning)


def test_a_clone_that_cannot_follow_is_an_error_with_its_log(cloning: Cloning) -> None:
    cloning.make()
    standby.start(cloning.clone)
    target = cloning.at_target()
    target.execute("ALTER SYSTEM SET primary_slot_name = 'missing'")
    target.execute("SELECT pg_reload_conf()")
    why = 'replication slot "missing" does not exist'
    wait_for(lambda: any(why in line for line in cloning.clone.server.log_tail()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(standby, "_STALLED_S", 1)
        with pytest.raises(NotFollowing) as lost:
            cloning.follow()
    assert why in lost.value.message
    target.execute(f"ALTER SYSTEM SET primary_slot_name = '{cloning.clone.slot}'".encode())
    target.execute("SELECT pg_reload_conf()")
    cloning.follow()


def test_settings_that_a_standby_cannot_have_are_an_error_with_the_log(cloning: Cloning) -> None:
    cloning.settings = QUICK | {"max_connections": "10", "max_wal_senders": "2"}
    cloning.make()
    with raises_code("server_did_not_start", match="max_connections"):
        standby.start(cloning.clone)
