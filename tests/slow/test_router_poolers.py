"""The router before poolers that restart, or refuse clients after a pause."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import errors, sql

from shardctl.pgbouncer import serving
from shardctl.router import NoConnection, PoolSettings
from tests.fixtures.fleets.routed import FACES, backends
from tests.fixtures.moves.requests import Requests
from tests.fixtures.moves.stopping import finish, patient
from tests.fixtures.servers.postgres import free_ports, wait_for
from tests.fixtures.straggler import straggling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.pooled import PooledFleet
    from tests.fixtures.fleets.routed import Face, Open
    from tests.fixtures.moves.stopping import MovingFleet


SIZE = 2
POOL = PoolSettings(min_size=SIZE, max_size=SIZE, timeout=20)
KEY = 1
"""Of a shard on node a, whose alias is paused."""
TEXT = "server login has been failing"


@contextmanager
def spoilt(fleet: PooledFleet) -> Iterator[None]:
    """Pause node a's alias while a statement runs there that its client cancels; then resume.

    PgBouncer connects to the node for the request, and the pause ends that connection.
    """
    pooler, alias = fleet.pg_bouncer, f"{fleet.database}_a"
    with (
        ThreadPoolExecutor(1) as beside,
        pooler.console() as pausing,
        pooler.console() as console,
        straggling(pooler.connect(alias, fleet.role), fleet.connect("a")) as straggler,
    ):
        paused = beside.submit(pausing.execute, f"PAUSE {alias}")
        straggler.cancel(console)
        straggler.end()
        paused.result()
        retry = serving.retry_of(console)
        assert serving.begin(console, [alias], reload=False) == []
        yield
        serving.end(console, retry)
        straggler.join()


def refusals(fleet: PooledFleet) -> int:
    """Count the clients that the pooler has refused so."""
    return fleet.pg_bouncer.log().count(f"pooler error: {TEXT}")


CALLS: dict[str, Callable[[Face], object]] = {
    "select": lambda db: db.select("user_id", "photos", KEY, limit=1),
    "insert": lambda db: db.insert("photos", KEY, {"user_id": KEY}),
    "scatter": lambda db: db.scatter("id", "photos", order_by="id", limit=9),
    "scatter in time": lambda db: db.scatter("id", "photos", limit=1, timeout=20.0),
    "transaction": lambda db: db.within(KEY, "SELECT 1"),
    "check": lambda db: [one.error for one in db.check().values()],
}


@FACES
def test_clients_that_a_pooler_refuses_after_a_pause_wait(
    fleet_pooled: PooledFleet, router: Open
) -> None:
    db = router(fleet_pooled.topology(), pool=POOL)
    db.insert("photos", KEY, {"user_id": KEY})
    expected = {
        "select": [(KEY,)],
        "transaction": [(1,)],
        "check": [None, None],
    }
    for name, call in CALLS.items():
        before = refusals(fleet_pooled)
        with spoilt(fleet_pooled):
            given = call(db)
        assert given == expected.get(name, given), name
        assert refusals(fleet_pooled) > before, name
    assert len(db.select("id", "photos", KEY)) == 2


def test_an_error_that_an_application_raises_in_a_poolers_rules_is_not_repeated(
    fleet_pooled: PooledFleet, router: Open
) -> None:
    fleet_pooled.execute(
        "a",
        """
        CREATE SEQUENCE public.calls;
        GRANT USAGE ON SEQUENCE public.calls TO PUBLIC;
        CREATE FUNCTION public.refuse() RETURNS integer LANGUAGE plpgsql AS $$BEGIN
            PERFORM nextval('public.calls');
            RAISE 'server login has been failing, try again later (server_login_retry)'
                USING ERRCODE = '08P01';
        END$$;
        """,
    )
    db = router(fleet_pooled.topology(), pool=POOL)
    db.insert("photos", KEY, {"user_id": KEY})
    with pytest.raises(errors.ProtocolViolation):
        db.select(sql.SQL("public.refuse()"), "photos", KEY)
    assert fleet_pooled.query("a", "SELECT last_value FROM public.calls") == [(1,)]


def test_a_node_that_is_down_is_waited_for_as_long_as_patience(
    fleet_pooled: PooledFleet, router: Open
) -> None:
    pooler = fleet_pooled.pg_bouncer
    db = router(fleet_pooled.topology(), pool=POOL, patience=1.0)
    db.insert("photos", KEY, {"user_id": KEY})
    wait_for(lambda: [p["pool_available"] for p in db.stats().pools.values()] == [2])
    port = fleet_pooled.servers["a"].port
    text = pooler.databases_file.read_text()
    pooler.databases_file.write_text(text.replace(f"port={port} ", f"port={free_ports(1)[0]} "))
    with closing(pooler.connect(f"{fleet_pooled.database}_a", fleet_pooled.role)) as waiting:
        pooler.admin("RELOAD")
        waiting.pgconn.send_query(b"SELECT 1")
        wait_for(lambda: "closing because: connect failed" in pooler.log())
    before = refusals(fleet_pooled)
    with pytest.raises((psycopg.OperationalError, NoConnection)):
        db.select("id", "photos", KEY)
    assert refusals(fleet_pooled) > before + 1
    pooler.databases_file.write_text(text)
    pooler.admin("RELOAD")
    pooler.admin(serving.setting(serving.SHORT_S))
    assert len(db.select("id", "photos", KEY)) == 1


def test_through_a_pooler_statements_are_never_prepared(
    fleet_pooled: PooledFleet, router: Open
) -> None:
    db = router(fleet_pooled.topology())
    for _ in range(12):
        db.insert("photos", 6, {"user_id": 6})
    assert len(db.select("id", "photos", 6)) == 12
    assert db.within(6, "SELECT count(*) FROM photos") == [(12,)]
    assert len(db.scatter("id", "photos", order_by="id", limit=20)) == 12
    with fleet_pooled.pg_bouncer.console() as console:
        used = {row["database"] for row in console.execute("SHOW CLIENTS")}
    assert {f"{fleet_pooled.database}_a", f"{fleet_pooled.database}_b"} <= used
    direct = router(fleet_pooled.topology(), through="nodes")
    assert len(direct.select("id", "photos", 6)) == 12


def test_a_poolers_alias_leads_to_all_nodes(fleet_pooled: PooledFleet, router: Open) -> None:
    where = f"host=127.0.0.1 port={fleet_pooled.pg_bouncer.port} user={fleet_pooled.role}"
    db = router(f"{where} dbname={fleet_pooled.database}_b")
    for key in range(8):
        db.insert("photos", key, {"user_id": key})
    found = db.scatter("user_id", "photos", order_by="user_id", limit=9)
    assert found == [(key,) for key in range(8)]
    assert db.map_version == 1


def full(db: Face) -> None:
    """Wait until every pool has all of its connections."""
    wait_for(lambda: [p["pool_available"] for p in db.stats().pools.values()] == [SIZE] * 2)


def failed(calls: list[Callable[[], object]]) -> list[str]:
    """Run calls one after the other; give what went wrong."""
    met = []
    for call in calls:
        try:
            call()
        except psycopg.Error as error:
            met.append(str(error))
    return met


@FACES
def test_a_pooler_that_restarts_costs_no_call(fleet_pooled: PooledFleet, router: Open) -> None:
    db = router(fleet_pooled.topology(), pool=POOL)
    db.scatter("id", "photos", limit=1)
    full(db)
    fleet_pooled.pg_bouncer.stop()
    fleet_pooled.pg_bouncer.start()
    calls: list[Callable[[], object]] = [
        lambda: db.insert("photos", 6, {"user_id": 6}),
        lambda: db.select("id", "photos", 6),
        lambda: db.within(6, "SELECT 1"),
        lambda: db.scatter("id", "photos", order_by="id", limit=9),
        lambda: db.insert("photos", 1, {"user_id": 1}),
    ] * SIZE
    assert failed(calls) == []
    assert len(db.select("id", "photos", 6)) == len(db.select("id", "photos", 1)) == SIZE


def test_a_write_that_is_broken_off_fails_and_is_not_done_again(
    fleet_routed: Fleet, router: Open
) -> None:
    db = router(fleet_routed.topology(), pool=PoolSettings(max_size=1))
    db.insert("photos", 1, {"user_id": 1, "score": 0})
    holding = fleet_routed.connect("a", autocommit=False)
    holding.execute("LOCK TABLE shard1.photos")
    with ThreadPoolExecutor(1) as beside:
        writing = beside.submit(db.insert, "photos", 1, {"user_id": 1})
        wait_for(lambda: fleet_routed.query("a", "SELECT 1 FROM pg_locks WHERE NOT granted"))
        for pid in backends(fleet_routed, "a"):
            fleet_routed.query("a", f"SELECT pg_terminate_backend({pid}, 5000)")
        with pytest.raises(psycopg.OperationalError):
            writing.result()
    holding.close()
    assert db.insert("photos", 1, {"user_id": 1, "score": 1}) > 0
    assert sorted(db.select("score", "photos", 1)) == [(0,), (1,)]
    assert db.stats().repeated == 0


@FACES
def test_a_cancelled_statement_in_the_pause_of_a_move_costs_no_call(
    fleet_points: MovingFleet, router: Open
) -> None:
    """Of the shards that move, one that stays on the source, and one of the other node."""
    patient(fleet_points)
    db, keys = router(fleet_points.topology()), (0, 2, 3, 5)
    for key in keys:
        db.insert("writes", key, {"token": key})

    def read(key: int, _: int) -> None:
        assert db.select("token", "writes", key, "token = %s", [key]) == [(key,)]

    pooler, alias = fleet_points.pg_bouncer, f"{fleet_points.database}_a"
    with (
        pooler.console() as console,
        straggling(pooler.connect(alias, fleet_points.role), fleet_points.log_in("a")) as straggler,
    ):
        mover = fleet_points.mover("start", "span pause begin")
        mover.at("span pause begin")
        mover.go()
        straggler.cancel(console)
        with Requests(read, keys, each=1) as clients:
            straggler.end()
            if mover.end() != 0:
                finish(fleet_points, "resume")
            straggler.join()
    assert clients.errors == []
    assert any(alias in line for line in mover.said)
