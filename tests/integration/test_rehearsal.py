"""The rehearsal of a streamed move: what it compares, reports and refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shardctl.errors import ShardctlError
from shardctl.moves import comparison, rehearsal
from shardctl.moves.rehearsal import RehearsalRefused
from tests.fixtures.moves.own import lose
from tests.fixtures.moves.proof import left, untouched
from tests.fixtures.moves.stream_moves import fill, replace_step
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from tests.fixtures.moves.own import Lab


def change_copy(lab: Lab, *statements: str) -> None:
    """Change a copy by hand, which refuses that."""
    with lab.connect("b") as session:
        session.execute("UPDATE shardctl.stream_copy SET is_open = true")
        for statement in statements:
            session.execute(statement.encode())
        session.execute("UPDATE shardctl.stream_copy SET is_open = false")


def refused(lab: Lab, **options: Any) -> RehearsalRefused:
    with pytest.raises(RehearsalRefused) as caught:
        lab.move([2, 3], "b", **options)
    return caught.value


def test_a_difference_is_named_by_table_and_key(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(fleet_own)
    fleet_own.ask(
        "a",
        "CREATE TABLE shard3.parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE shard3.part PARTITION OF shard3.parts DEFAULT",
        "INSERT INTO shard3.parts VALUES (1)",
    )
    monkeypatch.setattr(comparison, "BLOCKS", 4)  # what differs is in the last part
    run = rehearsal.STEP.run
    [(user,)] = fleet_own.ask("a", "SELECT max(id) FROM shard3.photos")
    [(other,)] = fleet_own.ask("a", "SELECT max(id) FROM shard2.photos")

    def changed(context: MoveContext) -> None:
        change_copy(
            fleet_own,
            f"DELETE FROM shard3.photos WHERE id = {user}",
            f"UPDATE shard2.photos SET user_id = 0 WHERE id = {other}",  # as many rows
            "UPDATE shard2.\"Odd %s\" SET c = '' WHERE a = 7",
            "INSERT INTO shard2.\"Odd %s\" VALUES (0, ',', '')",
            "DELETE FROM shard3.part",
            "CREATE TABLE shard3.there (id int)",
        )
        run(context)

    replace_step(monkeypatch, rehearsal.STEP, changed)
    error = refused(fleet_own)
    assert error.code == "rehearsal_differs"
    keys = (str(user), str(other), '(0,",")', "(7,b'7)")
    named = ("shard2.photos", "shard3.photos", "2,001", "shard2.Odd", "shard3.part:", *keys)
    for one in (*named, "shard3.there: different definitions"):
        assert one in str(error)
    untouched(fleet_own)
    report = fleet_own.copy("a").report
    assert report is not None
    found = report["rehearsal"]
    assert (len(found["differing"]), found["tables"]) == (5, 0)


@pytest.mark.long
def test_a_pause_that_is_too_long_ends_the_move_before_it(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = rehearsal.measured_parts

    def slow(*given: Any) -> dict[str, float]:
        return parts(*given) | {"claim": 5_500.0}

    monkeypatch.setattr(rehearsal, "measured_parts", slow)
    error = refused(fleet_own)
    assert error.code == "rehearsal_pause_too_long"
    untouched(fleet_own)


def test_a_rehearsal_holds_nothing_when_it_has_ended(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor when it has failed: no lock, no snapshot, no session, and no identity."""
    fleet_own.ask("a", "CREATE TABLE shard2.bare (n integer)")
    identity = "SELECT relreplident::text FROM pg_class WHERE oid = 'shard2.bare'::regclass"
    with monkeypatch.context() as patch:
        patch.setattr(comparison, "compare", lose)
        with pytest.raises(ShardctlError):
            fleet_own.move([2, 3], "b", identity_full=True)
    assert fleet_own.ask("a", identity) == [("f",)]
    held = (
        "SELECT pid FROM pg_stat_activity WHERE state = 'idle in transaction' UNION ALL"
        " SELECT pid FROM pg_locks WHERE mode IN ('ShareLock', 'ShareRowExclusiveLock')"
    )
    wait_for(lambda: fleet_own.ask("a", held) == fleet_own.ask("b", held) == [])
    fleet_own.abort()
    assert left(fleet_own) == []
    assert fleet_own.ask("a", identity) == [("d",)]
