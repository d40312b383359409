"""`moves doctor` on real servers: it clears what ended moves left, and nothing of an open one."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from shardctl import libpq
from shardctl.moves import plan
from shardctl.postgres import connection
from shardctl.postgres.logical import closing as closings
from shardctl.postgres.logical import publication, subscription
from shardctl.state import journal, leash
from shardctl.state.journal import MoveState
from tests.fixtures.fleets.fleet import PHOTOS, Fleet
from tests.fixtures.fleets.verify import SAFE, told, verify
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.postgres.connection import Connection
    from tests.fixtures.servers.postgres import StartServer

LEFTOVERS = "leftovers"
ENDED, OPEN, UNKNOWN = "5f3a9c1e", "0badcafe", "deadbeef"


@pytest.fixture(scope="module")
def left_by_moves(
    pg_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """Give a fleet of two nodes whose servers decode their WAL."""
    servers = {node: pg_server(SAFE | {"wal_level": "logical"}) for node in "ab"}
    fleet = Fleet(tmp_path_factory.mktemp("doctor"), servers, "doctor", "doctor")
    fleet.migration("0001_photos.sql", PHOTOS)
    fleet.init()
    yield fleet
    fleet.drop()


def session(fleet: Fleet, node: str) -> Connection:
    topology = fleet.topology()
    found = next(one for one in topology.nodes.values() if one.name == node)
    return connection.connect(found, topology.database, purpose="test", autocommit=True)


def record(fleet: Fleet, move: str, *, ended: bool, nodes: str = "ab", shard: int = 2) -> None:
    """Let journals have a streamed move of a shard from a to b."""
    for node in nodes:
        with closing(session(fleet, node)) as opened:
            journal.open_move(
                opened, move=move, method=plan.STREAM, source="a", target="b", shards=[shard],
                schemas=[f"shard{shard}"], retired=["retired"],
                plan={"options": {"retain_s": 0}},
            )  # fmt: skip
            if ended:
                journal.advance(opened, move, [MoveState.reserved], MoveState.aborted)


def publish(fleet: Fleet, move: str) -> None:
    name = journal.slot(move)
    with closing(session(fleet, "a")) as source:
        publication.create(source, name, [("shard2", "photos")], move=move)
        source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])


def subscribe(fleet: Fleet, move: str) -> None:
    """Let node b follow node a, with a closed copy of shard 2."""
    topology, name = fleet.topology(), journal.slot(move)
    with closing(session(fleet, "b")) as target:
        target.execute("CREATE SCHEMA shard2")
        target.execute("CREATE TABLE shard2.photos (id bigint PRIMARY KEY, user_id bigint)")
        closings.close(target, move, ["shard2"])
        source = topology.nodes[next(n for n in topology.nodes if n == "a")]
        dbname = topology.database.name
        conninfo = libpq.for_replication(source, topology.database, name, dbname=dbname)
        subscription.create(target, name, conninfo)
        subscription.enable(target, name)
        target.execute(f"CREATE ROLE {name}".encode())
        target.execute(f"ALTER ROLE {name} SET work_mem = '1MB'".encode())
        target.execute(f"GRANT CONNECT ON DATABASE {topology.database.name} TO {name}".encode())
        target.execute(
            f"CREATE FUNCTION shardctl.{name}_claim(given jsonb) RETURNS boolean"
            " LANGUAGE sql AS 'SELECT true'".encode()
        )


def doctor(fleet: Fleet, *arguments: str) -> list[dict[str, Any]]:
    run = fleet.here("moves", "doctor", "-o", "json", *arguments)
    assert run.returncode == 0, run.stderr
    found: list[dict[str, Any]] = json.loads(run.stdout)["left"]
    return found


def listed(found: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {(one["node"], one["kind"], one["move"]) for one in found}


@pytest.fixture
def cleared(left_by_moves: Fleet) -> Iterator[Fleet]:
    """Give the fleet, and leave nothing of any move behind."""
    yield left_by_moves
    for node in "ab":
        with closing(session(left_by_moves, node)) as opened:
            opened.execute("UPDATE shardctl.move SET state = 'aborted', ended = now()")
    doctor(left_by_moves, "--yes")
    for node in "ab":
        left_by_moves.execute(node, "TRUNCATE shardctl.move, shardctl.move_step, shardctl.event")
    assert doctor(left_by_moves) == []


LEFT = {
    ("a", "slot", ENDED),
    ("a", "publication", ENDED),
    ("a", "publication", UNKNOWN),
    ("b", "subscription", ENDED),
    ("b", "schema", ENDED),
    ("b", "role", ENDED),
    ("b", "function", ENDED),
    ("b", "records", ENDED),
}


def test_what_no_open_move_owns_is_listed_and_cleared(cleared: Fleet) -> None:
    record(cleared, ENDED, ended=True)
    record(cleared, OPEN, ended=False, nodes="a", shard=0)
    publish(cleared, ENDED)
    publish(cleared, OPEN)
    subscribe(cleared, ENDED)
    with closing(session(cleared, "a")) as source:
        publication.create(source, journal.slot(UNKNOWN), [("shard3", "photos")], move=UNKNOWN)

    with closing(session(cleared, "a")) as own, closing(session(cleared, "a")) as beside:
        slot = journal.slot(ENDED)
        leash.arm(own, beside, "a", move=ENDED, slot=slot, limit_bytes=1 << 40)

    seen = doctor(cleared, "--dry-run")
    assert listed(seen) == LEFT
    assert {one["why_not"] for one in seen} == {None}
    assert listed(doctor(cleared, "--dry-run")) == LEFT  # nothing was cleared

    findings = told(verify(cleared, LEFTOVERS))
    assert (LEFTOVERS, "left_by_move", "b", (), ENDED) in findings
    assert (LEFTOVERS, "left_by_move", "a", (), UNKNOWN) in findings
    assert not any(found[-1] == OPEN for found in findings if found[1] == "left_by_move")

    doctor(cleared, "--yes")
    assert doctor(cleared) == []
    assert cleared.query("a", "SELECT slot_name FROM pg_replication_slots") == [
        (f"shardctl_{OPEN}",)
    ]
    assert cleared.query("a", "SELECT pubname FROM pg_publication") == [(f"shardctl_{OPEN}",)]
    assert cleared.query("a", "SELECT to_regclass('shard2.photos') IS NOT NULL") == [(True,)]
    assert cleared.query("b", "SELECT to_regclass('shard2.photos') IS NULL") == [(True,)]
    assert cleared.query("b", "SELECT FROM pg_replication_origin") == []
    assert cleared.query("b", "SELECT count(*) FROM shardctl.event WHERE command = 'moves doctor'")


def test_a_schema_is_a_moves_only_where_the_move_has_marks(cleared: Fleet) -> None:
    record(cleared, ENDED, ended=True)
    cleared.execute("b", "CREATE SCHEMA shard2")
    assert doctor(cleared, "--yes") == []
    cleared.execute("b", f"INSERT INTO shardctl.stream VALUES ('{ENDED}', 0, 'making')")
    assert listed(doctor(cleared, "--yes")) == {("b", "schema", ENDED), ("b", "records", ENDED)}
    assert cleared.query("b", "SELECT FROM pg_namespace WHERE nspname = 'shard2'") == []


def test_what_a_node_may_know_that_is_away_stays(cleared: Fleet) -> None:
    record(cleared, ENDED, ended=True)
    publish(cleared, ENDED)
    with cleared.at_ports(b=free_ports(1)[0]):
        done = cleared.here("moves", "doctor", "--yes", "-o", "json")
        assert all(one["why_not"] for one in json.loads(done.stdout)["left"])
        assert done.returncode == 3
        assert "node b" in done.stderr
    assert listed(doctor(cleared, "--dry-run")) == {
        ("a", "slot", ENDED),
        ("a", "publication", ENDED),
    }
