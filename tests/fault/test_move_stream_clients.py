"""Clients that are hard to serve, while shards are streamed to another node."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.topology.model import ShardId
from shardctl.traffic.load import Load
from tests.fixtures import forking, storms
from tests.fixtures.moves import points, streamed
from tests.fixtures.moves.busy import Busy, prove_streamed
from tests.fixtures.moves.loads import wait_for_writes
from tests.fixtures.moves.stopping import finish, patient
from tests.fixtures.moves.writers import SERVED_S
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    import psycopg

    from tests.fixtures.moves.stopping import MovingFleet

    Session = psycopg.Connection[Any]

pytestmark = pytest.mark.fault

PER_S = 60
MOST_MS = 5_000
"""Less than PgBouncer's `server_login_retry`, and more than a busy machine takes."""
SECONDS = 15.0
OF_IT = "token = -1"
INSERT = "INSERT INTO {}writes (token) VALUES (-1)"
WAITS = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


@pytest.mark.parametrize("point", ["span claim begin", "", "span decide begin", "span route begin"])
def test_no_login_is_held_up_by_more_than_the_move_or_its_guards(
    fleet_stream: MovingFleet, point: str
) -> None:
    """Every request logs in anew, at its time and not when the one before has ended."""
    moved = [ShardId(shard) for shard in points.MOVED]
    with Load.start(fleet_stream.topology(), clients=0, logins=PER_S, shards=moved) as load:
        wait_for_writes(load, PER_S)
        mover = fleet_stream.mover("start", *([point] if point else []))
        if point:
            mover.at(point)
            mover.kill()
            wait_for(
                lambda: not fleet_stream.paused() and not fleet_stream.guards_to_fire(),
                seconds=3 * SERVED_S,
            )
            wait_for_writes(load, PER_S)
            finish(fleet_stream, "resume")
        else:
            assert mover.end() == 0, mover.said
        wait_for_writes(load, PER_S)
        report = load.check()
    assert fleet_stream.owner == "b"
    assert streamed.left(fleet_stream) == []
    assert report.ok, report.as_json()
    assert report.logins is not None
    waited = (report.longest_ms or 0.0) - report.logins.late_ms
    assert waited < MOST_MS + (1000 * SERVED_S if point else 0)


def opened(fleet: MovingFleet, kind: str) -> Session:
    """Open a transaction that holds a moved table."""
    match kind:
        case "through the pooler":
            session = fleet.pg_bouncer.connect("shard2", fleet.role)
        case "of a reader" | "direct" | "prepared":
            session = fleet.log_in("a")
        case _:
            session = fleet.log_in("a", user="postgres")
    statement = {
        "of a reader": "SELECT count(*) FROM shard2.writes",
        "through the pooler": INSERT.format(""),
        "of a vacuum": "LOCK TABLE shard2.writes IN SHARE UPDATE EXCLUSIVE MODE",
    }.get(kind, INSERT.format("shard2."))
    session.execute("BEGIN")
    session.execute(statement.encode())
    if kind == "prepared":
        session.execute("PREPARE TRANSACTION 'held'")
    return session


@pytest.mark.parametrize(
    ("kind", "errors"),
    [
        ("direct", {"FenceRefused", "WritersLeft"}),
        ("through the pooler", {"PauseFailed"}),
        ("prepared", {"FenceRefused", "WritersLeft"}),
        ("of a vacuum", {"FenceRefused", "WritersLeft"}),
        ("of a reader", set()),
    ],
)
def test_a_transaction_that_holds_a_moved_table_over_the_fence(
    fleet_stream: MovingFleet, kind: str, errors: set[str]
) -> None:
    with Busy(fleet_stream) as clients:
        mover = fleet_stream.mover("start", "span arm guards begin")
        mover.at("span arm guards begin")
        session = opened(fleet_stream, kind)
        mover.go()
        if errors:
            assert mover.end() == 3, mover.said
            assert {line.split(":")[0] for line in mover.said} & errors, mover.said
            assert fleet_stream.state() == "undone"
            clients.wait_served()
            if kind == "through the pooler":
                [(pid,)] = session.execute("SELECT pg_backend_pid()").fetchall()
                assert any(f"pid {pid})" in line for line in mover.said), mover.said
        else:
            assert mover.end() == 0, mover.said
        session.execute("COMMIT PREPARED 'held'" if kind == "prepared" else "COMMIT")
        session.close()
        finish(fleet_stream, "resume")
        clients.wait_served()
    assert clients.errors() == []
    count = f"SELECT count(*) FROM shard2.writes WHERE {OF_IT}"
    wrote = kind in {"direct", "through the pooler", "prepared"}
    assert fleet_stream.ask("b", count) == [(int(wrote),)]
    prove_streamed(fleet_stream, clients)


@pytest.mark.parametrize("word", ["COMMIT", "ROLLBACK"])
def test_a_transaction_that_ends_while_the_fence_waits_for_it(
    fleet_stream: MovingFleet, word: str
) -> None:
    patient(fleet_stream)
    with Busy(fleet_stream) as clients:
        mover = fleet_stream.mover("start", "span fence begin")
        mover.at("span fence begin")
        session = opened(fleet_stream, "direct")
        mover.go()
        wait_for(lambda: fleet_stream.ask("a", WAITS))
        session.execute(word.encode())
        session.close()
        assert mover.end() == 0, mover.said
        clients.wait_served()
    assert clients.errors() == []
    count = f"SELECT count(*) FROM shard2.writes WHERE {OF_IT}"
    assert fleet_stream.ask("b", count) == [(int(word == "COMMIT"),)]
    prove_streamed(fleet_stream, clients)


@pytest.mark.parametrize("case", forking.STORMS)
@pytest.mark.parametrize("through", ["poolers", "nodes"])
def test_children_of_forks_get_answers_of_their_own(
    fleet_stream: MovingFleet, through: str, case: str
) -> None:
    storm = storms.Storm(0, "writes", "token")
    storms.seed(lambda shard, text: fleet_stream.execute("a" if shard < 4 else "b", text), storm)
    topology = fleet_stream.write()
    with ThreadPoolExecutor(1) as beside:
        given = (str(SECONDS), through, "writes", "token")
        clients = beside.submit(forking.run, case, topology, *given)
        mover = fleet_stream.mover("start")
        if mover.end() != 0:
            finish(fleet_stream, "resume")
        found = clients.result()
    assert fleet_stream.state() == "done", mover.said
    assert found["met"] == []
    assert streamed.left(fleet_stream) == []
