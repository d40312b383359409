"""A streamed move: what the source keeps for it is shown, and bounded."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.moves import (
    marks,
    service,
    wal,
)
from shardctl.state.journal import MoveState
from shardctl.state.progress import Kept
from tests.fixtures.moves.stream_moves import left, planned
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from tests.fixtures.moves.own import Lab


def fill(lab: Lab, megabytes: int) -> None:
    """Write WAL on node a that belongs to no moved shard."""
    with lab.connect("a") as session:
        session.execute(
            "CREATE TABLE filled AS SELECT repeat('x', 1000) FROM generate_series(1, %s)",
            [megabytes * 1000],
        )
        session.execute("DROP TABLE filled")


def progress(lab: Lab) -> dict[str, Any]:
    """Give what `moves show -o json` has of a copy."""
    return lab.entry().copied() or {}


def test_the_lag_of_a_stream_is_shown_until_it_has_caught_up(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = marks.wait_for
    seen: list[dict[str, Any]] = []

    def lag(context: MoveContext, attempt: int, what: str, **how: Any) -> None:
        monkeypatch.setattr(marks, "wait_for", wait)
        name = context.plan.slot
        active = "SELECT active FROM pg_replication_slots"
        with fleet_own.connect("b", autocommit=True) as there:
            # One that is starting, or has not heard of it yet, would receive what is written.
            wait_for(lambda: fleet_own.ask("a", active) == [(True,)])
            there.execute(f"ALTER SUBSCRIPTION {name} DISABLE".encode())
            wait_for(lambda: fleet_own.ask("a", active) == [(False,)])
            fill(fleet_own, 8)
            wait_for(lambda: (progress(fleet_own).get("lag_bytes") or 0) > 8_000_000)
            seen.append(progress(fleet_own))
            there.execute(f"ALTER SUBSCRIPTION {name} ENABLE".encode())
        wait(context, attempt, what, **how)
        wait_for(lambda: progress(fleet_own)["lag_bytes"] < 1_000_000)
        seen.append(progress(fleet_own))

    monkeypatch.setattr(marks, "wait_for", lag)
    fleet_own.start(planned(fleet_own, [2, 3], "b", max_wal_bytes=64 << 20))
    assert [one["phase"] for one in seen] == ["catching up"] * 2
    assert seen[0]["wal_bytes"] >= seen[0]["lag_bytes"]
    assert service.read(fleet_own.topology).newest().copied() is None


def test_a_copy_ends_at_once_when_its_slot_was_dropped_at_the_limit(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At this rate it would take two minutes more, for nothing."""
    with fleet_own.connect("a") as session:
        session.execute(
            "CREATE TABLE shard2.wide AS SELECT n AS id, repeat(md5(n::text), 30) AS body"
            " FROM generate_series(1, 4000) AS n"
        )
        session.execute("ALTER TABLE shard2.wide ADD PRIMARY KEY (id)")
    expect = Kept.advance

    def exceed(kept: Kept, key: str, done: int = 1) -> None:
        monkeypatch.setattr(Kept, "advance", expect)
        fill(fleet_own, 10)
        expect(kept, key, done)

    monkeypatch.setattr(Kept, "advance", exceed)
    began = time.monotonic()
    with pytest.raises(wal.WalLimitReached):
        fleet_own.start(planned(fleet_own, [2, 3], "b", max_wal_bytes=8 << 20, max_rate="32k"))
    assert time.monotonic() - began < 60
    assert fleet_own.copy("a").state is MoveState.aborted
    assert left(fleet_own) == []
