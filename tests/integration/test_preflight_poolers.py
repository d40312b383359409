"""Poolers that would let clients down during a cutover: preflight says so before."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fixtures.moves.preflight import Movable


def fit(preflight_fleet: Movable) -> bool:
    """Tell whether its poolers, looked at alone, are refused for nothing."""
    return preflight_fleet.refused(part="poolers") == {}


def test_a_pooler_that_is_down(preflight_pooled: Movable) -> None:
    pooler = preflight_pooled.fleet.pg_bouncer
    pooler.stop()
    assert str(pooler.port) in preflight_pooled.only("pooler_unavailable", "poolers")


def test_a_user_who_may_only_look(preflight_pooled: Movable) -> None:
    preflight_pooled.fleet.change(admin_user="watcher")
    told = preflight_pooled.refused(part="poolers")
    assert "admin_users" in told["not_pooler_admin"]


def test_a_file_that_was_edited_or_is_not_the_newest(preflight_pooled: Movable) -> None:
    file = preflight_pooled.fleet.pg_bouncer.databases_file
    text = file.read_text()
    file.write_text(f"{text}\nmine = host=/tmp\n")
    told = preflight_pooled.only("pooler_file_edited", "poolers")
    assert str(file) in told
    file.unlink()
    told = preflight_pooled.only("file_outdated", "poolers")
    file.write_text(text)
    assert fit(preflight_pooled)
    # The file says it, and the pooler has not read it.
    file.write_text("[databases]\n")
    preflight_pooled.fleet.pg_bouncer.admin("RELOAD")
    file.write_text(text)
    preflight_pooled.only("file_outdated", "poolers")


def test_aliases_that_somebody_holds(preflight_pooled: Movable) -> None:
    pooler = preflight_pooled.fleet.pg_bouncer
    pooler.admin('PAUSE "shard2"')
    assert "shard2" in preflight_pooled.only("paused", "poolers")
    pooler.admin('RESUME "shard2"')
    pooler.admin('DISABLE "preflight_a"')
    told = preflight_pooled.only("disabled", "poolers")
    assert "preflight_a" in told
    pooler.admin('ENABLE "preflight_a"')
    pooler.admin('PAUSE "shard0"')  # which stays
    assert fit(preflight_pooled)
    pooler.admin('RESUME "shard0"')
    pooler.admin("PAUSE")
    preflight_pooled.only("paused", "poolers")
    pooler.admin("RESUME")


def test_a_name_that_the_poolers_host_does_not_know(preflight_pooled: Movable) -> None:
    from tests.fixtures.moves.preflight import offer  # its fixtures have to be registered first

    preflight_pooled.change(pooler_host="no-such-name.invalid")
    offer(preflight_pooled)
    assert "name.invalid" in preflight_pooled.only("guard_login")
