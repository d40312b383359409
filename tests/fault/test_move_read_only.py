"""Moves that refuse writes: killed and stopped, while clients write and others read."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.fixtures.moves import points
from tests.fixtures.moves.harm import frozen, kill, processes, retry_soon
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.readers import REFUSED, Readers
from tests.fixtures.moves.stopping import finish, patient
from tests.fixtures.moves.windows import BEGINS_READ_ONLY, in_the_window
from tests.fixtures.moves.writers import FENCE, SERVED_S, Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

NAMES = [begin.removeprefix("span ").removesuffix(" begin") for begin in BEGINS_READ_ONLY]
FENCED = ["drain", "mark", "replay", "snapshot", "decide", "promote", "claim"]
"""Sub-steps before which writes are refused, and reads go on."""
STOPPED = ["fence", *FENCED, "pause", "close", "route"]


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


def _read_by_another(fleet: MovingFleet) -> None:
    """See that a client that comes now is served at the moved shards' new node."""
    for alias in ("shard2", "shard3"):
        with fleet.pg_bouncer.connect(alias, fleet.role) as client:
            client.execute("SET statement_timeout TO '20s'")
            client.execute("SELECT count(*) FROM writes")


def wait_ended(fleet: MovingFleet, clients: Clients, *, window: bool) -> None:
    """Wait until clients are served again, or, in the one window, refused."""
    if not window:
        clients.wait_served()
        return
    wait_for(lambda: fleet.paused() == [] and REFUSED in clients.codes(), seconds=SERVED_S)
    clients.wait_served({0})


def test_reads_go_on_while_writes_are_refused(fleet_points_read_only: MovingFleet) -> None:
    patient(fleet_points_read_only)
    stops = [f"span {name} begin" for name in FENCED]
    with Clients(fleet_points_read_only) as clients, Readers(fleet_points_read_only) as readers:
        mover = fleet_points_read_only.mover("start", *stops)
        for stop in stops:
            assert mover.at() == stop
            wait_refused(fleet_points_read_only)
            readers.wait_served()
            assert fleet_points_read_only.paused() == []
            mover.go()
        assert mover.end() == 0, mover.said
        clients.wait_served()
        readers.wait_served()
    assert readers.errors() == []
    assert clients.codes() <= {REFUSED}, clients.errors()
    assert fleet_points_read_only.owner == "c"
    assert fleet_points_read_only.state() == "done"
    prove(fleet_points_read_only, clients)


@pytest.mark.parametrize("point", BEGINS_READ_ONLY)
def test_a_killed_move_leaves_nobody_read_only(
    fleet_points_read_only: MovingFleet, point: str
) -> None:
    with Clients(fleet_points_read_only) as clients, Readers(fleet_points_read_only) as readers:
        mover = fleet_points_read_only.mover("start", point)
        mover.at(point)
        mover.kill()
        window = in_the_window(fleet_points_read_only, point)
        wait_ended(fleet_points_read_only, clients, window=window)
        move = fleet_points_read_only.journal()
        abort = move is not None and move.state.undoable and len(point) % 2 == 0
        finish(fleet_points_read_only, "abort" if abort else "resume")
        clients.wait_served()
        readers.wait_served()
    assert clients.codes() <= ({REFUSED, *FENCE} if window else {REFUSED}), clients.errors()
    assert readers.codes() <= (FENCE if window else set()), readers.errors()
    assert window or clients.gap() < SERVED_S
    assert readers.gap() < SERVED_S
    assert fleet_points_read_only.owner == ("a" if abort else "c")
    prove(fleet_points_read_only, clients)


def test_a_source_whose_move_was_decided_and_not_ended_is_closed_by_its_guard(
    fleet_points_read_only: MovingFleet,
) -> None:
    with Clients(fleet_points_read_only) as clients, Readers(fleet_points_read_only) as readers:
        mover = fleet_points_read_only.mover("start", "span promote begin")
        mover.at()
        mover.kill()
        wait_refused(fleet_points_read_only)
        readers.wait_served()
        wait_for(lambda: FENCE & clients.codes(), seconds=2 * SERVED_S)
        finish(fleet_points_read_only, "resume")
        clients.wait_served()
        readers.wait_served()
    assert readers.codes() <= FENCE, readers.errors()
    prove(fleet_points_read_only, clients)


@pytest.mark.parametrize("name", STOPPED)
def test_a_move_that_stops_and_wakes_up_too_late_does_no_harm(
    fleet_points_read_only: MovingFleet, name: str
) -> None:
    point = f"span {name} begin"
    with Clients(fleet_points_read_only) as clients, Readers(fleet_points_read_only) as readers:
        mover = fleet_points_read_only.mover("start", point)
        mover.at(point)
        mover.signal(signal.SIGSTOP)
        window = in_the_window(fleet_points_read_only, point)
        wait_ended(fleet_points_read_only, clients, window=window)
        if window:
            wait_for(lambda: FENCE & clients.codes(), seconds=2 * SERVED_S)
        mover.go()
        mover.signal(signal.SIGCONT)
        if mover.end() != 0:
            finish(fleet_points_read_only, "resume")
        clients.wait_served()
        readers.wait_served()
    assert clients.codes() <= ({REFUSED, *FENCE} if window else {REFUSED}), clients.errors()
    assert readers.codes() <= (FENCE if window else set()), readers.errors()
    prove(fleet_points_read_only, clients)


@pytest.mark.parametrize(
    ("name", "verb"),
    [
        ("fence", "resume"), ("mark", "abort"), ("decide", "resume"),
        ("promote", "resume"), ("pause", "resume"), ("route", "resume"),
    ],
)  # fmt: skip
def test_a_source_that_is_killed(fleet_points_read_only: MovingFleet, name: str, verb: str) -> None:
    server = fleet_points_read_only.servers["a"].server
    retry_soon(fleet_points_read_only)
    with Clients(fleet_points_read_only) as clients:
        mover = fleet_points_read_only.mover("start", f"span {name} begin")
        mover.at()
        kill(server.data_directory)
        mover.go()
        if name in {"promote", "pause", "route"}:
            clients.wait_served({2, 3})  # by the target
        server.start()
        assert mover.end() == 3, mover.said
        clients.wait_served()
        finish(fleet_points_read_only, verb)
        clients.wait_served()
    assert fleet_points_read_only.owner == ("a" if verb == "abort" else "c")
    prove(fleet_points_read_only, clients)


@pytest.mark.parametrize(
    ("name", "verb"),
    [("fence", "abort"), ("replay", "resume"), ("decide", "resume"), ("promote", "resume"),
     ("claim", "resume"), ("pause", "resume"), ("map", "resume")],
)  # fmt: skip
def test_a_target_that_is_killed(fleet_points_read_only: MovingFleet, name: str, verb: str) -> None:
    retry_soon(fleet_points_read_only)
    with Clients(fleet_points_read_only) as clients, Readers(fleet_points_read_only) as readers:
        mover = fleet_points_read_only.mover("start", f"span {name} begin")
        mover.at()
        kill(fleet_points_read_only.place)
        mover.go()
        mover.end()
        clients.wait_served({0})
        undone = fleet_points_read_only.state() in {"reserved", "undone"}
        if undone:
            clients.wait_served()
            assert clients.codes() <= {REFUSED}, clients.errors()
        finish(fleet_points_read_only, verb)
        clients.wait_served()
        readers.wait_served()
    assert not undone or readers.errors() == []
    assert fleet_points_read_only.owner == ("a" if verb == "abort" else "c")
    prove(fleet_points_read_only, clients)


@pytest.mark.parametrize("name", ["fence", "mark", "pause"])
def test_a_source_that_hangs(fleet_points_read_only: MovingFleet, name: str) -> None:
    with Clients(fleet_points_read_only) as clients:
        mover = fleet_points_read_only.mover("start", f"span {name} begin")
        mover.at()
        with frozen(lambda: processes(fleet_points_read_only.servers["a"].server.data_directory)):
            mover.go()
            wait_for(lambda: fleet_points_read_only.guards_to_fire() == [], seconds=2 * SERVED_S)
            if name == "pause":
                # A client whose statement the source has taken waits until that goes on.
                _read_by_another(fleet_points_read_only)
        if mover.end() != 0:
            finish(fleet_points_read_only, "resume")
        clients.wait_served()
    assert clients.codes() <= {REFUSED, *FENCE}, clients.errors()
    prove(fleet_points_read_only, clients)


@pytest.mark.parametrize("verb", ["resume", "abort"])
@pytest.mark.parametrize("name", ["fence", "mark", "decide"])
def test_an_operator_who_lost_the_locks_to_another_does_nothing_more(
    fleet_points_read_only: MovingFleet, name: str, verb: str
) -> None:
    with Clients(fleet_points_read_only) as clients, Readers(fleet_points_read_only) as readers:
        mover = fleet_points_read_only.mover("start", f"span {name} begin")
        mover.at()
        fleet_points_read_only.unlock()
        finish(fleet_points_read_only, verb)
        mover.go()
        assert mover.end() != 0
        clients.wait_served()
        readers.wait_served()
    assert readers.errors() == []
    assert clients.codes() <= {REFUSED}, clients.errors()
    assert fleet_points_read_only.owner == ("a" if verb == "abort" else "c")
    prove(fleet_points_read_only, clients)


def test_points_of_both_kinds_of_moves_are_all_that_the_code_has() -> None:
    assert {*points.spans()} ^ {*NAMES} == {"logins", "close"}
