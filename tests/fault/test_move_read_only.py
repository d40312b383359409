"""Moves that refuse writes: killed, stopped and held up, while clients write and others read."""

from __future__ import annotations

import dataclasses
import signal
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.fixtures import points
from tests.fixtures.harming import frozen, kill, processes, retry_soon
from tests.fixtures.moving import finish
from tests.fixtures.proving import assert_nothing_is_lost, prove, triggers
from tests.fixtures.reading import REFUSED, Readers
from tests.fixtures.servers import wait_for
from tests.fixtures.windows import BEGINS_READ_ONLY, in_the_window
from tests.fixtures.writing import FENCE, MAX_PAUSE_S, SERVED_S, Clients

if TYPE_CHECKING:
    from tests.fixtures.moving import MovingFleet

pytestmark = pytest.mark.fault

NAMES = [begin.removeprefix("span ").removesuffix(" begin") for begin in BEGINS_READ_ONLY]
FENCED = ["drain", "mark", "replay", "snapshot", "decide", "promote", "claim"]
"""Sub-steps before which writes are refused, and reads go on."""
STOPPED = ["fence", *FENCED, "pause", "close", "route"]


@pytest.fixture
def refusing(moving: MovingFleet) -> MovingFleet:
    """Give a fleet whose moves refuse writes."""
    moving.choice = dataclasses.replace(moving.choice, read_only=True)
    return moving


def patient(fleet: MovingFleet) -> None:
    """Give the move more time than a test spends at its points."""
    fleet.choice = dataclasses.replace(fleet.choice, max_pause_s=30.0)


def wait_refused(fleet: MovingFleet) -> None:
    """See that a write is refused through a pooler and straight at the source, by its shard."""
    with (
        fleet.pg_bouncer.connect("shard2", fleet.role) as pooled,
        fleet.log_in("a", user="postgres") as direct,
    ):
        direct.execute("SET session_replication_role TO replica")
        for session, table in ((pooled, "writes"), (direct, "shard2.writes")):
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as caught:
                session.execute(f"INSERT INTO {table} (token) VALUES (-1)".encode())
            assert str(caught.value).startswith(
                "shard 2 is read-only: INSERT on table shard2.writes is refused"
            )


def wait_ended(fleet: MovingFleet, clients: Clients, *, window: bool) -> None:
    """Wait until clients are served again, or, in the one window, refused."""
    if not window:
        clients.wait_served()
        return
    wait_for(lambda: fleet.paused() == [] and REFUSED in clients.codes(), seconds=SERVED_S)
    clients.wait_served({0})


def test_reads_go_on_while_writes_are_refused(refusing: MovingFleet) -> None:
    patient(refusing)
    stops = [f"span {name} begin" for name in FENCED]
    with Clients(refusing) as clients, Readers(refusing) as readers:
        mover = refusing.mover("start", *stops)
        for stop in stops:
            assert mover.at() == stop
            wait_refused(refusing)
            readers.wait_served()
            assert refusing.paused() == []
            mover.go()
        assert mover.end() == 0, mover.said
        clients.wait_served()
        readers.wait_served()
    assert readers.errors() == []
    assert clients.codes() <= {REFUSED}, clients.errors()
    assert refusing.owner == "c"
    assert refusing.state() == "done"
    prove(refusing, clients)


@pytest.mark.parametrize("point", BEGINS_READ_ONLY)
def test_a_killed_move_leaves_nobody_read_only(refusing: MovingFleet, point: str) -> None:
    with Clients(refusing) as clients, Readers(refusing) as readers:
        mover = refusing.mover("start", point)
        mover.at(point)
        mover.kill()
        window = in_the_window(refusing, point)
        wait_ended(refusing, clients, window=window)
        move = refusing.journal()
        abort = move is not None and move.state.undoable and len(point) % 2 == 0
        finish(refusing, "abort" if abort else "resume")
        clients.wait_served()
        readers.wait_served()
    assert clients.codes() <= ({REFUSED, *FENCE} if window else {REFUSED}), clients.errors()
    assert readers.codes() <= (FENCE if window else set()), readers.errors()
    assert window or clients.gap() < SERVED_S
    assert readers.gap() < SERVED_S
    assert refusing.owner == ("a" if abort else "c")
    prove(refusing, clients)


def test_a_source_whose_move_was_decided_and_not_ended_is_closed_by_its_guard(
    refusing: MovingFleet,
) -> None:
    with Clients(refusing) as clients, Readers(refusing) as readers:
        mover = refusing.mover("start", "span promote begin")
        mover.at()
        mover.kill()
        wait_refused(refusing)
        readers.wait_served()
        wait_for(lambda: FENCE & clients.codes(), seconds=2 * SERVED_S)
        finish(refusing, "resume")
        clients.wait_served()
        readers.wait_served()
    assert readers.codes() <= FENCE, readers.errors()
    prove(refusing, clients)


@pytest.mark.parametrize("name", STOPPED)
def test_a_move_that_stops_and_wakes_up_too_late_does_no_harm(
    refusing: MovingFleet, name: str
) -> None:
    point = f"span {name} begin"
    with Clients(refusing) as clients, Readers(refusing) as readers:
        mover = refusing.mover("start", point)
        mover.at(point)
        mover.signal(signal.SIGSTOP)
        window = in_the_window(refusing, point)
        wait_ended(refusing, clients, window=window)
        if window:
            wait_for(lambda: FENCE & clients.codes(), seconds=2 * SERVED_S)
        mover.go()
        mover.signal(signal.SIGCONT)
        if mover.end() != 0:
            finish(refusing, "resume")
        clients.wait_served()
        readers.wait_served()
    assert clients.codes() <= ({REFUSED, *FENCE} if window else {REFUSED}), clients.errors()
    assert readers.codes() <= (FENCE if window else set()), readers.errors()
    prove(refusing, clients)


@pytest.mark.parametrize("verb", ["resume", "abort"])
@pytest.mark.parametrize("kind", ["writing", "making"])
def test_who_goes_on_calls_the_cutover_off_and_writes_are_let_in(
    refusing: MovingFleet, kind: str, verb: str
) -> None:
    statement = {
        "writing": "INSERT INTO shard2.writes (token) VALUES (-1)",
        "making": "CREATE TABLE shard2.made ()",
    }[kind]
    with Clients(refusing) as clients, Readers(refusing) as readers:
        with refusing.log_in("a", user="postgres") as session, session.transaction():
            session.execute(statement.encode())
            mover = refusing.mover("start")
            assert mover.end() == 3
            error = {"writing": "WritersLeft", "making": "FenceRefused"}[kind]
            assert any(line.startswith(error) for line in mover.said), mover.said
            assert refusing.state() == "undone"
            assert True not in triggers(refusing, "a").values()
            clients.wait_served()
        if kind == "making":
            refusing.ask("a", "DROP TABLE shard2.made")
        finish(refusing, verb)
        clients.wait_served()
        readers.wait_served()
    assert readers.errors() == []
    assert clients.codes() <= {REFUSED}, clients.errors()
    assert readers.gap() < MAX_PAUSE_S
    assert refusing.owner == ("a" if verb == "abort" else "c")
    if kind == "writing":
        count = "SELECT count(*) FROM shard2.writes WHERE token = -1"
        assert refusing.ask(refusing.owner, count) == [(1,)]
    prove(refusing, clients)


def test_who_goes_on_is_ended_where_the_operator_wants_it(refusing: MovingFleet) -> None:
    refusing.choice = dataclasses.replace(refusing.choice, terminate=True)
    with Clients(refusing) as clients:
        session = refusing.log_in("a", user="postgres")
        session.execute("BEGIN; INSERT INTO shard2.writes (token) VALUES (-1)")
        mover = refusing.mover("start")
        assert mover.end() == 0, mover.said
        with pytest.raises(psycopg.OperationalError):
            session.execute("COMMIT")
        session.close()
        clients.wait_served()
    assert refusing.ask("c", "SELECT count(*) FROM shard2.writes WHERE token = -1") == [(0,)]
    prove(refusing, clients)


def test_a_table_that_is_made_behind_the_fence_calls_the_cutover_off(
    refusing: MovingFleet,
) -> None:
    patient(refusing)
    with Clients(refusing) as clients:
        mover = refusing.mover("start", "span snapshot end")
        mover.at()
        refusing.ask("a", "CREATE TABLE shard2.made ()")
        mover.go()
        assert mover.end() == 3
        assert any(line.startswith("TablesUncovered") for line in mover.said), mover.said
        assert refusing.state() == "undone"
        clients.wait_served()
        refusing.ask("a", "DROP TABLE shard2.made")
        finish(refusing, "resume")
        clients.wait_served()
    assert clients.codes() <= {REFUSED}, clients.errors()
    prove(refusing, clients)


def test_a_table_that_is_made_after_the_decision_is_told_and_kept(
    refusing: MovingFleet,
) -> None:
    patient(refusing)
    with Clients(refusing) as clients:
        mover = refusing.mover("start", "span promote begin")
        mover.at()
        refusing.ask("a", "CREATE TABLE shard2.made (n) AS SELECT 1")
        mover.go()
        assert mover.end() == 3
        assert any("shard2.made: not the same table" in line for line in mover.said), mover.said
        clients.wait_served()
        finish(refusing, "resume")
    move = refusing.journal()
    assert move is not None
    assert move.proof == "differs"
    assert refusing.ask("a", f"SELECT n FROM shard2__retired_{move.id}.made") == [(1,)]
    assert clients.codes() <= {REFUSED}, clients.errors()
    assert_nothing_is_lost(refusing, clients)


def test_a_reader_of_the_pooler_that_outlasts_the_budget_keeps_nobody_from_being_served(
    refusing: MovingFleet,
) -> None:
    with Clients(refusing) as clients, Readers(refusing) as readers:
        with refusing.pg_bouncer.connect("shard2", refusing.role) as session:
            session.execute("BEGIN; SELECT count(*) FROM writes")
            mover = refusing.mover("start")
            assert mover.end() == 0, mover.said
            with pytest.raises(psycopg.errors.UndefinedTable):
                session.execute("SELECT count(*) FROM writes")
        clients.wait_served()
        readers.wait_served()
    assert readers.errors() == []
    assert clients.codes() <= {REFUSED}, clients.errors()
    prove(refusing, clients)


def test_readers_of_the_source_hold_nothing_up(refusing: MovingFleet) -> None:
    with Clients(refusing) as clients, Readers(refusing) as readers:
        with refusing.log_in("a") as session, session.transaction():
            session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            session.execute("SELECT count(*) FROM shard2.writes")
            mover = refusing.mover("start")
            assert mover.end() == 0, mover.said
        clients.wait_served()
    assert readers.errors() == []
    assert readers.gap() < MAX_PAUSE_S
    prove(refusing, clients)


def test_ids_that_the_source_gives_out_until_it_is_closed_are_not_given_out_again(
    refusing: MovingFleet,
) -> None:
    patient(refusing)
    refusing.ask("a", "CREATE SEQUENCE shard3.own; CREATE SEQUENCE shard3.down INCREMENT -1")
    with Clients(refusing) as clients:
        mover = refusing.mover("start", "span pause begin")
        mover.at()
        assert refusing.state("c") == "claimed"
        refusing.ask(
            "a", "SELECT nextval('shard3.own'), nextval('shard3.down') FROM generate_series(1, 99)"
        )
        refusing.ask("a", "SELECT shardctl.open_block(2, now() + interval '8 seconds')")
        ((drawn,),) = refusing.ask("a", "SELECT max(shard2.next_id()) FROM generate_series(1, 99)")
        mover.go()
        assert mover.end() == 0, mover.said
        clients.wait_served()
    ((given,),) = refusing.ask("c", "SELECT shard2.next_id()")
    assert given > drawn
    own = "SELECT nextval('shard3.own'), nextval('shard3.down')"
    assert refusing.ask("c", own) == [(100, -100)]
    passed = f"SELECT shardctl.id_time({given}) < now()"  # else `verify` tells of the future
    wait_for(lambda: refusing.ask("c", passed) == [(True,)])
    refusing.ask("c", "DROP SEQUENCE shard3.own, shard3.down")
    prove(refusing, clients)


@pytest.mark.parametrize(
    ("name", "verb"),
    [
        ("fence", "resume"), ("mark", "abort"), ("decide", "resume"),
        ("promote", "resume"), ("pause", "resume"), ("route", "resume"),
    ],
)  # fmt: skip
def test_a_source_that_is_killed(refusing: MovingFleet, name: str, verb: str) -> None:
    server = refusing.servers["a"].server
    retry_soon(refusing)
    with Clients(refusing) as clients:
        mover = refusing.mover("start", f"span {name} begin")
        mover.at()
        kill(server.data_directory)
        mover.go()
        if name in {"promote", "pause", "route"}:
            clients.wait_served({2, 3})  # by the target
        server.start()
        assert mover.end() == 3, mover.said
        clients.wait_served()
        finish(refusing, verb)
        clients.wait_served()
    assert refusing.owner == ("a" if verb == "abort" else "c")
    prove(refusing, clients)


@pytest.mark.parametrize(
    ("name", "verb"),
    [("fence", "abort"), ("replay", "resume"), ("decide", "resume"), ("promote", "resume"),
     ("claim", "resume"), ("pause", "resume"), ("map", "resume")],
)  # fmt: skip
def test_a_target_that_is_killed(refusing: MovingFleet, name: str, verb: str) -> None:
    retry_soon(refusing)
    with Clients(refusing) as clients, Readers(refusing) as readers:
        mover = refusing.mover("start", f"span {name} begin")
        mover.at()
        kill(refusing.place)
        mover.go()
        mover.end()
        clients.wait_served({0})
        undone = refusing.state() in {"reserved", "undone"}
        if undone:
            clients.wait_served()
            assert clients.codes() <= {REFUSED}, clients.errors()
        finish(refusing, verb)
        clients.wait_served()
        readers.wait_served()
    assert not undone or readers.errors() == []
    assert refusing.owner == ("a" if verb == "abort" else "c")
    prove(refusing, clients)


@pytest.mark.parametrize("name", ["fence", "mark", "pause"])
def test_a_source_that_hangs(refusing: MovingFleet, name: str) -> None:
    with Clients(refusing) as clients:
        mover = refusing.mover("start", f"span {name} begin")
        mover.at()
        with frozen(processes(refusing.servers["a"].server.data_directory)):
            mover.go()
            if name == "pause":
                clients.wait_served({2, 3}, seconds=SERVED_S)
            else:
                wait_for(lambda: refusing.guard_processes() == [], seconds=2 * SERVED_S)
        if mover.end() != 0:
            finish(refusing, "resume")
        clients.wait_served()
    assert clients.codes() <= {REFUSED, *FENCE}, clients.errors()
    prove(refusing, clients)


@pytest.mark.parametrize("verb", ["resume", "abort"])
@pytest.mark.parametrize("name", ["fence", "mark", "decide"])
def test_an_operator_who_lost_the_locks_to_another_does_nothing_more(
    refusing: MovingFleet, name: str, verb: str
) -> None:
    with Clients(refusing) as clients, Readers(refusing) as readers:
        mover = refusing.mover("start", f"span {name} begin")
        mover.at()
        refusing.unlock()
        finish(refusing, verb)
        mover.go()
        assert mover.end() != 0
        clients.wait_served()
        readers.wait_served()
    assert readers.errors() == []
    assert clients.codes() <= {REFUSED}, clients.errors()
    assert refusing.owner == ("a" if verb == "abort" else "c")
    prove(refusing, clients)


def test_an_abort_waits_for_readers_to_remove_what_refused_writes(refusing: MovingFleet) -> None:
    with Clients(refusing) as clients:
        mover = refusing.mover("start", "span decide begin")
        mover.at()
        mover.kill()
        with refusing.log_in("a") as session, session.transaction():
            session.execute("SELECT count(*) FROM shard2.writes")
            wait_for(lambda: not refusing.is_locked())
            other = refusing.mover("abort")
            assert other.end() == 3, other.said
            assert any(line.startswith("TriggersLeft") for line in other.said), other.said
            assert triggers(refusing, "a") == {"shard2.writes": False, "shard3.writes": False}
            clients.wait_served()
        finish(refusing, "abort")
    assert clients.codes() <= {REFUSED}, clients.errors()
    assert refusing.owner == "a"
    prove(refusing, clients)


def test_points_of_both_kinds_of_moves_are_all_that_the_code_has() -> None:
    assert {*points.spans()} ^ {*NAMES} == {"logins", "close"}


def test_a_vacuum_does_not_keep_writes_refused(refusing: MovingFleet) -> None:
    with Clients(refusing) as clients:
        mover = refusing.mover("start", "span mark begin")
        mover.at()
        with refusing.log_in("a", user="postgres", autocommit=False) as session:
            # What VACUUM and CREATE INDEX CONCURRENTLY hold, for hours perhaps.
            session.execute("LOCK TABLE shard2.writes IN SHARE UPDATE EXCLUSIVE MODE")
            mover.kill()
            clients.wait_served()
            assert set(triggers(refusing, "a").values()) == {False}
        finish(refusing, "abort")
        clients.wait_served()
    assert clients.codes() <= {REFUSED}, clients.errors()
    prove(refusing, clients)


def test_a_source_that_shardctl_could_not_close_is_closed_by_its_guard(
    refusing: MovingFleet,
) -> None:
    with Clients(refusing) as clients:
        mover = refusing.mover("start", "span close begin")
        mover.at()
        with refusing.log_in("a", user="postgres", autocommit=False) as session:
            session.execute("CREATE TABLE shard2.begun ()")
            mover.go()
            assert mover.end() == 3, mover.said
            session.rollback()
        gone = "SELECT FROM pg_namespace WHERE nspname IN ('shard2', 'shard3')"
        wait_for(lambda: not refusing.ask("a", gone), seconds=MAX_PAUSE_S + 20)
        finish(refusing, "resume")
        clients.wait_served()
    assert clients.codes() <= FENCE | {REFUSED}, clients.errors()
    prove(refusing, clients)
