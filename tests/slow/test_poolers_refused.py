"""Poolers that `pgbouncer apply` must not touch, or that do not take what they are given."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

from shardctl.hosts import accounts
from tests.fixtures.fleets.pooled import PooledFleet, leads, offered, refused

if TYPE_CHECKING:
    import pytest

    from tests.fixtures.fleets.pooled import AddPooler


def test_an_alias_wins_over_a_database_of_the_operators(fleet_unapplied: PooledFleet) -> None:
    pooler = fleet_unapplied.pg_bouncer
    text = pooler.config.read_text()
    pooler.config.write_text(f"[databases]\nshard3 = host=127.0.0.1\n{text}")
    pooler.admin("RELOAD")
    assert offered(pooler) == {"shard3": 5432}
    assert fleet_unapplied.here("pgbouncer", "apply").returncode == 0
    assert offered(pooler) == leads(fleet_unapplied)
    pooler.config.write_text(f"{text}[databases]\nshard3 = host=127.0.0.1\n")
    assert f"the last line of {pooler.config}" in refused(fleet_unapplied)


def test_one_of_two_that_fails_does_not_hold_up_the_other(
    fleet_unapplied: PooledFleet, pooler_for: AddPooler
) -> None:
    pooler_for(fleet_unapplied, "p2")
    first, second = fleet_unapplied.pg_bouncers
    folder = first.config.parent
    if os.geteuid() == 0:
        fleet_unapplied.change(os_user=accounts.server_account(None))
    done = fleet_unapplied.patched(
        "import os, shardctl.provision.poolers as poolers\n"
        "whole = poolers.apply\n"
        "def apply(*given):\n"
        f"    os.chown({str(folder)!r}, os.geteuid(), -1)\n"
        f"    os.chmod({str(folder)!r}, 0o555)\n"
        "    whole(*given)\n"
        "poolers.apply = apply",
        "pgbouncer", "apply", "-o", "json",
    )  # fmt: skip
    assert done.returncode == 3
    assert str(folder) in done.stderr
    told = [one["code"] for one in json.loads(done.stdout)["errors"]]
    assert told == ["file_refused", "poolers_unfinished"]
    assert (offered(first), offered(second)) == ({}, leads(fleet_unapplied))
    folder.chmod(0o755)
    if os.geteuid() == 0:
        shutil.chown(folder, str(accounts.server_account(None)))
    done = fleet_unapplied.here("pgbouncer", "apply", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert [one["action"] for one in json.loads(done.stdout)["poolers"]] == ["write", "none"]
    assert offered(first) == offered(second) == leads(fleet_unapplied)
    assert second.log().count("RELOAD command issued") == 1


def test_a_wrong_password_is_said_and_none_is_shown(
    fleet_unapplied: PooledFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    pooler = fleet_unapplied.pg_bouncer
    pooler.config.write_text(
        pooler.config.read_text().replace("auth_type = trust", "auth_type = md5")
    )
    (pooler.config.parent / "users.txt").write_text('"postgres" "right-one"\n')
    pooler.admin("RELOAD")
    for given in (None, "wrong-one"):
        if given:
            monkeypatch.setenv("PGPASSWORD", given)
        told = refused(fleet_unapplied)
        assert "~/.pgpass" in told
        assert "-one" not in told
    monkeypatch.setenv("PGPASSWORD", "right-one")
    done = fleet_unapplied.here("--verbose", "pgbouncer", "apply")
    assert done.returncode == 0, done.stderr
    logs = (fleet_unapplied.directory / "state").rglob("*.log")
    texts = [done.stdout, done.stderr, pooler.databases_file.read_text()]
    texts += [log.read_text() for log in logs]
    assert not any("right-one" in text for text in texts)
