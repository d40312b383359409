"""`run` and `settle`: tried again where nothing can have been done, and nowhere else."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.errors import Misused
from shardctl.router import (
    CommitUnknown,
    NodeUnknown,
    NotCommitted,
    PoolSettings,
    ShardedDatabase,
    ShardMoved,
)
from tests.fixtures import breaking
from tests.fixtures.fleets.routed import away, moved_by_hand

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.routed import Open

INSERT = "INSERT INTO photos (id, user_id) VALUES (5, 2)"
IDS = "SELECT id FROM photos ORDER BY id"
ONE = PoolSettings(max_size=1)


def kills(fleet: Fleet, times: int) -> tuple[list[int], Callable[[Any], None]]:
    """Give what ends the session of a connection's server, the first so many times."""
    calls: list[int] = []

    def kill(connection: Any) -> None:
        calls.append(connection.info.backend_pid)
        if len(calls) <= times:
            fleet.execute("a", f"SELECT pg_terminate_backend({calls[-1]}, 5000)")

    return calls, kill


def test_what_work_returns_is_committed(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology(), pool=ONE)
    assert db.ran(2, INSERT, IDS) == [(5,)]
    assert db.select("id", "photos", 2) == [(5,)]


def test_work_is_run_again_where_its_shard_is(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    with moved_by_hand(fleet_routed, 2, "a", "b"):
        pass
    calls: list[Any] = []
    assert db.ran(2, calls.append, INSERT, IDS) == [(5,)]
    assert len(calls) == 2
    assert db.node_of(2) == "b"
    assert fleet_routed.query("b", "SELECT id FROM shard2.photos") == [(5,)]


def test_the_last_attempt_raises_what_a_move_did(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    with moved_by_hand(fleet_routed, 2, "a", "b"):
        pass
    with pytest.raises(ShardMoved):
        db.ran(2, INSERT, attempts=1)
    assert db.ran(2, INSERT, IDS, attempts=1) == [(5,)]


def test_a_shard_that_stays_away_is_not_tried_again(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology(), patience=0.1)
    calls: list[Any] = []
    with away(fleet_routed, 2, "a"), pytest.raises(psycopg.errors.UndefinedTable):
        db.ran(2, calls.append, INSERT)
    assert len(calls) == 1


def test_a_table_that_is_missing_is_tried_once_more(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    calls: list[Any] = []
    with pytest.raises(psycopg.errors.UndefinedTable, match="forgotten"):
        db.ran(2, calls.append, "SELECT FROM forgotten", attempts=9)
    assert len(calls) == 2


def test_a_connection_lost_before_commit_is_replaced(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology(), pool=ONE)
    calls, kill = kills(fleet_routed, 2)
    assert db.ran(2, INSERT, kill, IDS) == [(5,)]
    assert len(set(calls)) == 3
    calls, kill = kills(fleet_routed, 1)  # it is noticed at COMMIT, which was not sent
    db.ran(2, "DELETE FROM photos", kill)
    assert 1 <= len(calls) <= 2


def test_the_attempts_are_counted(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology(), pool=ONE)
    calls, kill = kills(fleet_routed, 9)
    with pytest.raises(psycopg.OperationalError):
        db.ran(2, INSERT, kill, IDS)
    assert len(calls) == 3
    assert db.select("id", "photos", 2) == []
    with pytest.raises(Misused, match="0 attempts"):
        db.ran(2, INSERT, attempts=0)


def test_a_commit_whose_answer_is_lost_is_never_repeated(fleet_routed: Fleet, router: Open) -> None:
    calls: list[Any] = []
    with breaking.at_commit(fleet_routed, "a", done=True) as topology:
        db = router(topology, pool=ONE)
        with pytest.raises(CommitUnknown, match="may have been committed") as told:
            db.ran(2, calls.append, INSERT)
    assert len(calls) == 1
    assert (sorted(told.value.shards), str(told.value.node)) == ([2], "a")
    assert isinstance(told.value, psycopg.OperationalError)
    assert fleet_routed.query("a", "SELECT id FROM shard2.photos") == [(5,)]


def test_an_error_of_works_own_is_raised_as_it_is(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    calls: list[Any] = []

    def fail(_: Any) -> None:
        calls.append(1)
        raise KeyError("its own")

    with pytest.raises(KeyError, match="its own"):
        db.ran(2, INSERT, fail)
    with pytest.raises(psycopg.errors.UniqueViolation):
        db.ran(2, INSERT, INSERT, calls.append)
    assert calls == [1]
    assert db.select("id", "photos", 2) == []


def test_work_that_hides_an_error_does_not_pass_for_done(fleet_routed: Fleet) -> None:
    with db_thread(fleet_routed) as db:
        with pytest.raises(NotCommitted, match="had failed"):
            db.run(2, hide)
        assert db.select("id", "photos", 2) == []


def hide(connection: Any) -> str:
    connection.execute(INSERT)
    try:
        connection.execute(INSERT)
    except psycopg.errors.UniqueViolation:
        return "fine"
    return "not reached"


def db_thread(fleet: Fleet) -> Any:
    return ShardedDatabase(fleet.topology())


def test_work_that_hides_the_fence_is_run_again(fleet_routed: Fleet) -> None:
    calls: list[Any] = []

    def work(connection: Any) -> None:
        calls.append(1)
        with contextlib.suppress(psycopg.Error):
            connection.execute(INSERT)

    with db_thread(fleet_routed) as db:
        with moved_by_hand(fleet_routed, 2, "a", "b"):
            pass
        db.run(2, work)
        assert len(calls) == 2
        assert db.select("id", "photos", 2) == [(5,)]


def test_a_block_that_hides_the_fence_is_told(fleet_routed: Fleet) -> None:
    with db_thread(fleet_routed) as db:
        with moved_by_hand(fleet_routed, 2, "a", "b"):
            pass

        def block() -> None:
            with db.shard(2) as connection, contextlib.suppress(psycopg.Error):
                connection.execute(INSERT)

        with pytest.raises(ShardMoved):
            block()
        # A table that is missing stays the application's.
        with db.shard(2) as connection, contextlib.suppress(psycopg.Error):
            connection.execute("SELECT FROM forgotten")


def test_run_ends_its_transaction_by_itself(fleet_routed: Fleet) -> None:
    with db_thread(fleet_routed) as db:
        with pytest.raises(psycopg.ProgrammingError, match=r"run\(\) itself ends"):
            db.run(2, lambda connection: connection.commit())
        with pytest.raises(NotCommitted, match="closed the connection"):
            db.run(2, lambda connection: connection.close())


class ForeignError(Exception):
    """An error as a driver that is not psycopg has it."""

    def __init__(self, text: str, sqlstate: str) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate


def foreign(fleet: Fleet, node: str, statement: str) -> ForeignError:
    """Run a statement on a connection of another driver; give its error."""
    with pytest.raises(psycopg.Error) as told:
        fleet.query(node, statement)
    return ForeignError(str(told.value), str(told.value.sqlstate))


def test_settle_waits_for_a_shard_that_moves(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    told: list[bool] = []
    with moved_by_hand(fleet_routed, 2, "a", "b"):
        error = foreign(fleet_routed, "a", "SELECT FROM shard2.photos")
        waiting = threading.Thread(target=lambda: told.append(db.settle(error, 2)))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
    waiting.join(20)
    assert told == [True]
    assert db.node_of(2) == "b"
    # The map is known by now: another connection's error may be of the old node.
    assert db.settle(error, 2)
    assert db.settle(error, 2, node="a")
    wrapped = RuntimeError("as an ORM says it")
    wrapped.__cause__ = error
    assert db.settle(wrapped, 2, node="a")


def test_settle_leaves_other_errors_to_the_application(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology(), patience=0.1)
    assert not db.settle(foreign(fleet_routed, "a", "SELECT FROM shard2.forgotten"), 2)
    assert not db.settle(foreign(fleet_routed, "a", "SELECT 1 / 0"), 2)
    assert not db.settle(ValueError("of another kind"), 2)
    assert not db.settle(psycopg.OperationalError("lost"), 2)
    with away(fleet_routed, 2, "a"):
        assert not db.settle(foreign(fleet_routed, "a", "SELECT FROM shard2.photos"), 2)


def test_settle_refuses_a_node_that_there_is_not(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    with pytest.raises(NodeUnknown):
        db.settle(ForeignError("x", "42P01"), 2, node="z")
