"""Moves that refuse writes: what is in their way, and what they are in the way of."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.fixtures.moves.proof import assert_nothing_is_lost, prove, triggers
from tests.fixtures.moves.readers import REFUSED, Readers
from tests.fixtures.moves.stopping import finish, patient
from tests.fixtures.moves.writers import FENCE, MAX_PAUSE_S, Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault


@pytest.mark.parametrize("verb", ["resume", "abort"])
@pytest.mark.parametrize("kind", ["writing", "making"])
def test_who_goes_on_calls_the_cutover_off_and_writes_are_let_in(
    fleet_points_read_only: MovingFleet, kind: str, verb: str
) -> None:
    statement = {
        "writing": "INSERT INTO shard2.writes (token) VALUES (-1)",
        "making": "CREATE TABLE shard2.made ()",
    }[kind]
    with Clients(fleet_points_read_only) as clients, Readers(fleet_points_read_only) as readers:
        with fleet_points_read_only.log_in("a", user="postgres") as session, session.transaction():
            session.execute(statement.encode())
            mover = fleet_points_read_only.mover("start")
            assert mover.end() == 3
            error = {"writing": "WritersLeft", "making": "FenceRefused"}[kind]
            assert any(line.startswith(error) for line in mover.said), mover.said
            assert fleet_points_read_only.state() == "undone"
            assert True not in triggers(fleet_points_read_only, "a").values()
            clients.wait_served()
        if kind == "making":
            fleet_points_read_only.ask("a", "DROP TABLE shard2.made")
        finish(fleet_points_read_only, verb)
        clients.wait_served()
        readers.wait_served()
    assert readers.errors() == []
    assert clients.codes() <= {REFUSED}, clients.errors()
    assert readers.gap() < MAX_PAUSE_S
    assert fleet_points_read_only.owner == ("a" if verb == "abort" else "c")
    if kind == "writing":
        count = "SELECT count(*) FROM shard2.writes WHERE token = -1"
        assert fleet_points_read_only.ask(fleet_points_read_only.owner, count) == [(1,)]
    prove(fleet_points_read_only, clients)


def test_who_goes_on_is_ended_where_the_operator_wants_it(
    fleet_points_read_only: MovingFleet,
) -> None:
    fleet_points_read_only.choice = dataclasses.replace(
        fleet_points_read_only.choice, terminate=True
    )
    with Clients(fleet_points_read_only) as clients:
        session = fleet_points_read_only.log_in("a", user="postgres")
        session.execute("BEGIN; INSERT INTO shard2.writes (token) VALUES (-1)")
        mover = fleet_points_read_only.mover("start")
        assert mover.end() == 0, mover.said
        with pytest.raises(psycopg.OperationalError):
            session.execute("COMMIT")
        session.close()
        clients.wait_served()
    assert fleet_points_read_only.ask(
        "c", "SELECT count(*) FROM shard2.writes WHERE token = -1"
    ) == [(0,)]
    prove(fleet_points_read_only, clients)


def test_a_table_that_is_made_behind_the_fence_calls_the_cutover_off(
    fleet_points_read_only: MovingFleet,
) -> None:
    patient(fleet_points_read_only)
    with Clients(fleet_points_read_only) as clients:
        mover = fleet_points_read_only.mover("start", "span snapshot end")
        mover.at()
        fleet_points_read_only.ask("a", "CREATE TABLE shard2.made ()")
        mover.go()
        assert mover.end() == 3
        assert any(line.startswith("TablesUncovered") for line in mover.said), mover.said
        assert fleet_points_read_only.state() == "undone"
        clients.wait_served()
        fleet_points_read_only.ask("a", "DROP TABLE shard2.made")
        finish(fleet_points_read_only, "resume")
        clients.wait_served()
    assert clients.codes() <= {REFUSED}, clients.errors()
    prove(fleet_points_read_only, clients)


def test_a_table_that_is_made_after_the_decision_is_told_and_kept(
    fleet_points_read_only: MovingFleet,
) -> None:
    patient(fleet_points_read_only)
    with Clients(fleet_points_read_only) as clients:
        mover = fleet_points_read_only.mover("start", "span promote begin")
        mover.at()
        fleet_points_read_only.ask("a", "CREATE TABLE shard2.made (n) AS SELECT 1")
        mover.go()
        assert mover.end() == 3
        assert any("shard2.made: different definitions" in line for line in mover.said), mover.said
        clients.wait_served()
        finish(fleet_points_read_only, "resume")
    move = fleet_points_read_only.journal()
    assert move is not None
    assert move.proof == "differs"
    assert fleet_points_read_only.ask("a", f"SELECT n FROM shard2__retired_{move.id}.made") == [
        (1,)
    ]
    assert clients.codes() <= {REFUSED}, clients.errors()
    assert_nothing_is_lost(fleet_points_read_only, clients)


def test_a_reader_of_the_pooler_that_outlasts_the_budget_keeps_nobody_from_being_served(
    fleet_points_read_only: MovingFleet,
) -> None:
    with Clients(fleet_points_read_only) as clients, Readers(fleet_points_read_only) as readers:
        with fleet_points_read_only.pg_bouncer.connect(
            "shard2", fleet_points_read_only.role
        ) as session:
            session.execute("BEGIN; SELECT count(*) FROM writes")
            mover = fleet_points_read_only.mover("start")
            assert mover.end() == 0, mover.said
            with pytest.raises(psycopg.errors.UndefinedTable):
                session.execute("SELECT count(*) FROM writes")
        clients.wait_served()
        readers.wait_served()
    assert readers.errors() == []
    assert clients.codes() <= {REFUSED}, clients.errors()
    prove(fleet_points_read_only, clients)


def test_readers_of_the_source_hold_nothing_up(fleet_points_read_only: MovingFleet) -> None:
    with Clients(fleet_points_read_only) as clients, Readers(fleet_points_read_only) as readers:
        with fleet_points_read_only.log_in("a") as session, session.transaction():
            session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            session.execute("SELECT count(*) FROM shard2.writes")
            mover = fleet_points_read_only.mover("start")
            assert mover.end() == 0, mover.said
        clients.wait_served()
    assert readers.errors() == []
    assert readers.gap() < MAX_PAUSE_S
    prove(fleet_points_read_only, clients)


def test_ids_that_the_source_gives_out_until_it_is_closed_are_not_given_out_again(
    fleet_points_read_only: MovingFleet,
) -> None:
    patient(fleet_points_read_only)
    fleet_points_read_only.ask(
        "a", "CREATE SEQUENCE shard3.own; CREATE SEQUENCE shard3.down INCREMENT -1"
    )
    with Clients(fleet_points_read_only) as clients:
        mover = fleet_points_read_only.mover("start", "span pause begin")
        mover.at()
        assert fleet_points_read_only.state("c") == "claimed"
        fleet_points_read_only.ask(
            "a", "SELECT nextval('shard3.own'), nextval('shard3.down') FROM generate_series(1, 99)"
        )
        fleet_points_read_only.ask(
            "a", "SELECT shardctl.open_block(2, now() + interval '8 seconds')"
        )
        ((drawn,),) = fleet_points_read_only.ask(
            "a", "SELECT max(shard2.next_id()) FROM generate_series(1, 99)"
        )
        mover.go()
        assert mover.end() == 0, mover.said
        clients.wait_served()
    ((given,),) = fleet_points_read_only.ask("c", "SELECT shard2.next_id()")
    assert given > drawn
    own = "SELECT nextval('shard3.own'), nextval('shard3.down')"
    assert fleet_points_read_only.ask("c", own) == [(100, -100)]
    passed = f"SELECT shardctl.id_time({given}) < now()"  # else `verify` tells of the future
    wait_for(lambda: fleet_points_read_only.ask("c", passed) == [(True,)])
    fleet_points_read_only.ask("c", "DROP SEQUENCE shard3.own, shard3.down")
    prove(fleet_points_read_only, clients)


def test_an_abort_waits_for_readers_to_remove_what_refused_writes(
    fleet_points_read_only: MovingFleet,
) -> None:
    with Clients(fleet_points_read_only) as clients:
        mover = fleet_points_read_only.mover("start", "span decide begin")
        mover.at()
        mover.kill()
        with fleet_points_read_only.log_in("a") as session, session.transaction():
            session.execute("SELECT count(*) FROM shard2.writes")
            wait_for(lambda: not fleet_points_read_only.is_locked())
            other = fleet_points_read_only.mover("abort")
            assert other.end() == 3, other.said
            assert any(line.startswith("TriggersLeft") for line in other.said), other.said
            assert triggers(fleet_points_read_only, "a") == {
                "shard2.writes": False,
                "shard3.writes": False,
            }
            clients.wait_served()
        finish(fleet_points_read_only, "abort")
    assert clients.codes() <= {REFUSED}, clients.errors()
    assert fleet_points_read_only.owner == "a"
    prove(fleet_points_read_only, clients)


def test_a_vacuum_does_not_keep_writes_refused(fleet_points_read_only: MovingFleet) -> None:
    with Clients(fleet_points_read_only) as clients:
        mover = fleet_points_read_only.mover("start", "span mark begin")
        mover.at()
        with fleet_points_read_only.log_in("a", user="postgres", autocommit=False) as session:
            # What VACUUM and CREATE INDEX CONCURRENTLY hold, for hours perhaps.
            session.execute("LOCK TABLE shard2.writes IN SHARE UPDATE EXCLUSIVE MODE")
            mover.kill()
            clients.wait_served()
            assert set(triggers(fleet_points_read_only, "a").values()) == {False}
        finish(fleet_points_read_only, "abort")
        clients.wait_served()
    assert clients.codes() <= {REFUSED}, clients.errors()
    prove(fleet_points_read_only, clients)


def test_a_source_that_shardctl_could_not_close_is_closed_by_its_guard(
    fleet_points_read_only: MovingFleet,
) -> None:
    with Clients(fleet_points_read_only) as clients:
        mover = fleet_points_read_only.mover("start", "span close begin")
        mover.at()
        with fleet_points_read_only.log_in("a", user="postgres", autocommit=False) as session:
            session.execute("CREATE TABLE shard2.begun ()")
            mover.go()
            assert mover.end() == 3, mover.said
            session.rollback()
        gone = "SELECT FROM pg_namespace WHERE nspname IN ('shard2', 'shard3')"
        wait_for(lambda: not fleet_points_read_only.ask("a", gone), seconds=MAX_PAUSE_S + 20)
        finish(fleet_points_read_only, "resume")
        clients.wait_served()
    assert clients.codes() <= FENCE | {REFUSED}, clients.errors()
    prove(fleet_points_read_only, clients)
