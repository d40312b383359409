"""Sources and fleets from which preflight lets nothing be moved, by what was seen of them."""

from __future__ import annotations

import pytest

from tests.fixtures.moves.facts import fit


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("ANY 1 (other, C)", "synchronous_standby_names has c, so commits would wait for"),
        ("*", "has *, so commits"),
    ],
)
def test_commits_that_would_wait_for_the_clone(setting: str, told: str) -> None:
    seen = fit()
    seen.source(settings={"synchronous_standby_names": setting})
    assert told in seen.only("synchronous_clone")
    seen.source(settings={"synchronous_standby_names": "FIRST 2 (s1, s2)"})
    assert seen.refused() == {}


def test_other_standbys() -> None:
    seen = fit()
    seen.source(standbys=(("replica", "127.0.0.1"),))
    told = seen.only("standbys")
    assert "it has standbys: replica (127.0.0.1); one that is promoted during" in told
    seen.choose(ignore_standby=True)
    assert seen.refused() == {}
    assert "standby replica (127.0.0.1) is ignored" in seen.notes()


def test_a_standby_for_a_source() -> None:
    seen = fit()
    seen.source(in_recovery=True)
    assert "is a standby" in seen.only("standby")


def test_a_server_with_too_little() -> None:
    seen = fit()
    seen.source(settings={"wal_level": "minimal", "max_wal_senders": "0"})
    assert "minimal, so it cannot be cloned" in seen.only("wal_level")
    seen = fit(owned=200, moved=range(180))
    seen.source(
        settings={"max_connections": "20", "max_locks_per_transaction": "10",
                  "max_prepared_transactions": "0"},
    )  # fmt: skip
    told = seen.only("lock_table")
    assert "node a: the fence takes 180 locks in one transaction" in told
    assert "room for 150 beside" in told
    assert "node c: the claim takes 200 locks in one transaction" in told


def test_a_rate_that_pg_basebackup_would_not_take() -> None:
    seen = fit()
    seen.choose(max_rate="2G")
    assert "invalid rate '2G'" in seen.only("max_rate")
    seen.choose(max_rate="1M")
    assert seen.refused() == {}
