"""Sources and fleets from which preflight lets nothing be moved, by what was seen of them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shardctl.moves.wal import Wal
from shardctl.state.journal import Move, MoveState, StepRecord
from tests.fixtures.fleets.facts import NOW
from tests.fixtures.moves.facts import A, B, fit


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


def test_what_is_noted_of_the_source() -> None:
    seen = fit()
    assert "archiving" not in seen.notes()
    seen.source(settings={"archive_mode": "on"}, wal=Wal(2**40, "", keep_bytes=64 << 20))
    told = seen.notes()
    assert "node c will not archive WAL" in told
    assert "keeps at most 64 MB of WAL for the target (max_slot_wal_keep_size)" in told


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


def another_move(state: MoveState, revision: int = 1) -> Move:
    return Move(
        id="5f3a9c1e", revision=revision, state=state, method="clone", source="a", target="c",
        shards=(2, 3), schemas=("shard2", "shard3"), retired=(), plan={}, who="ann",
        started=NOW, changed=NOW, ended=None, drained_at=None, drained_to=None, proof=None,
        report=None,
    )  # fmt: skip


def test_another_move_that_has_not_ended() -> None:
    seen = fit()
    seen.peer(B, moves=(another_move(MoveState.reserved),))
    told = seen.only("move_unfinished")
    assert "node b: move 5f3a9c1e (a to c, started by ann) is unfinished" in told
    assert "`shardctl moves resume 5f3a9c1e` or `abort`" in told
    # The source has its records, too, the newest of them where the target was away.
    begun = [
        StepRecord(name, "done", NOW + timedelta(seconds=at), 1.0, None)
        for at, name in enumerate(("reserve", "clone"))
    ]
    seen.peer(A, moves=(another_move(MoveState.reserved),), steps={"5f3a9c1e": begun})
    seen.peer(B, steps={"5f3a9c1e": begun[:1]})
    assert "is unfinished, at step clone" in seen.only("move_unfinished")
    # A command that carries it out is waited for.
    holder = "shardctl move-shards 5f3a9c1e by ann@db1"
    seen.peer(A, holder=holder)
    told = seen.only("move_unfinished")
    assert f"is running ({holder}), at step clone" in told
    assert "--lock-wait" in told
    assert "resume" not in told
    # What one node knows to be over is over, though another has an older copy.
    seen.peer(A, moves=(another_move(MoveState.aborted, 2),))
    assert seen.refused() == {}
