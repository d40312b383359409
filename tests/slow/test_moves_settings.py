"""What a move leaves of the clone's settings, and what they no longer keep from running."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.moves import claims
from shardctl.state import journal
from shardctl.state.journal import MoveState
from tests.fixtures.moves.own import Lab, messages

if TYPE_CHECKING:
    from collections.abc import Sequence


PENDING = "SELECT name FROM pg_settings WHERE pending_restart"
WORKERS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'logical replication %'"


def enable(fleet_own: Lab) -> None:
    """Let a subscription run on node a; its publisher is away."""
    with fleet_own.connect("a") as session:
        session.execute(
            "CREATE SUBSCRIPTION late CONNECTION 'host=127.0.0.1 port=1 dbname=x'"
            " PUBLICATION p WITH (connect = false, slot_name = 'late')"
        )
        session.execute("ALTER SUBSCRIPTION late ENABLE")


def drop(fleet_own: Lab) -> None:
    with fleet_own.connect("a") as session:
        session.execute("ALTER SUBSCRIPTION late DISABLE")
        session.execute("ALTER SUBSCRIPTION late SET (slot_name = NONE)")
        session.execute("DROP SUBSCRIPTION late")


def test_sequences_that_are_near_their_end_go_on_with_the_next_value(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a standby replays of them is up to 32 values ahead, and no further than their end."""
    near = {
        "few": ("MAXVALUE 100", 96),
        "down": ("INCREMENT -1 MINVALUE -10", 9),
        "ring": ("MAXVALUE 10 CYCLE", 18),
        "last": ("MAXVALUE 3", 3),
        "new": ("MAXVALUE 3", 0),
        "plenty": ("", 5),
    }
    near_end = claims.near_end

    def drawn(*given: Any) -> list[int]:
        for name, (_, draws) in near.items():
            query = f"SELECT nextval('shard2.{name}') FROM generate_series(1, {draws})"
            fleet_own.ask("a", query)
        return near_end(*given)

    monkeypatch.setattr(claims, "near_end", drawn)
    with fleet_own.connect("a") as session:
        for name, (bounds, _) in near.items():
            session.execute(f"CREATE SEQUENCE shard2.{name} {bounds}".encode())
    fleet_own.move([2, 3], "c")
    assert fleet_own.ask("c", "SELECT nextval('shard2.few'), nextval('shard2.few')") == [(97, 98)]
    assert fleet_own.ask("c", "SELECT nextval('shard2.down')") == [(-10,)]
    assert fleet_own.ask("c", "SELECT nextval('shard2.ring')") == [(9,)]
    assert fleet_own.ask("c", "SELECT nextval('shard2.new')") == [(1,)]
    [(value,)] = fleet_own.ask("c", "SELECT nextval('shard2.plenty')")
    assert 5 < value <= 5 + claims.MARGIN + 1
    with pytest.raises(psycopg.errors.SequenceGeneratorLimitExceeded):
        fleet_own.ask("c", "SELECT nextval('shard2.last')")


def test_a_subscription_that_is_enabled_during_the_cutover_ends_it_before_the_promotion(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark_drained = journal.mark_drained

    def late(*given: Any, **named: Any) -> str | None:
        enable(fleet_own)
        return mark_drained(*given, **named)

    monkeypatch.setattr(journal, "mark_drained", late)
    error = fleet_own.stopped([2, 3], "c")
    monkeypatch.undo()
    assert (
        "SubscriptionsEnabled: node a: subscriptions were enabled during the move: late"
        in messages(error)
    )
    assert error.state is MoveState.undone
    fleet_own.put(2)
    assert fleet_own.ask("c", "SELECT pg_is_in_recovery()") == [(True,)]
    assert fleet_own.ask("c", WORKERS) == [(0,)]
    assert _codes(fleet_own) == ["subscriptions", "move_stopped"]
    drop(fleet_own)
    fleet_own.resume(max_pause_s=10)
    assert fleet_own.leads("shard2") == "c"
    assert fleet_own.ask("c", "SELECT count(*) FROM pg_subscription") == [(0,)]


def _codes(fleet_own: Lab) -> Sequence[str | None]:
    """Try to go on, and give the codes of what is refused."""
    with pytest.raises(Exception, match="is not finished") as caught:
        fleet_own.resume()
    found = [getattr(one, "code", None) for one in caught.value.parts()]  # type: ignore[attr-defined]  # it is MoveStopped
    return [code for code in found if code]
