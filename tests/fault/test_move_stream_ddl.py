"""DDL on moved tables in every phase of a streamed move: told by name, or carried over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves import streamed
from tests.fixtures.moves.busy import prove_streamed
from tests.fixtures.moves.stopping import finish, patient
from tests.fixtures.moves.writers import Clients

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

TABLES = (
    "CREATE TABLE shard2.people (id bigint PRIMARY KEY, name text)",
    "INSERT INTO shard2.people SELECT n, 'one' FROM generate_series(1, 500) AS n",
    "CREATE TABLE shard2.pets (id bigint PRIMARY KEY, name text)",
    "INSERT INTO shard2.pets SELECT n, 'cat' FROM generate_series(1, 50) AS n",
    "CREATE TABLE shard2.days (day integer PRIMARY KEY) PARTITION BY RANGE (day)",
    "CREATE FUNCTION shard2.t() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
    "CREATE TRIGGER t BEFORE INSERT ON shard2.pets FOR EACH ROW EXECUTE FUNCTION shard2.t()",
)
"""What is there before the move."""
GONE = ("pets", "days", "people", "made")
DDL = {
    "writes was altered": (
        "ALTER TABLE shard2.writes ALTER token TYPE bigint USING token + 0",
        "ALTER TABLE shard2.writes REPLICA IDENTITY FULL",
    ),
    "people was altered": (
        "DROP TABLE shard2.people",
        "CREATE TABLE shard2.people (id bigint PRIMARY KEY, name text)",
        "INSERT INTO shard2.people SELECT n, 'two' FROM generate_series(1, 500) AS n",
    ),
    "pets was altered": (
        "ALTER TABLE shard2.pets ADD legs integer DEFAULT 4",
        "ALTER TABLE shard2.pets DROP name",
        "CREATE INDEX CONCURRENTLY pets_legs ON shard2.pets (legs)",
        "GRANT SELECT ON shard2.pets TO PUBLIC",
        "ALTER TABLE shard2.pets DISABLE TRIGGER t",
        "ALTER TABLE shard2.pets ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY seen ON shard2.pets USING (true)",
        "INSERT INTO shard2.pets VALUES (70, 3)",
    ),
    "days_1 was made": (
        "CREATE TABLE shard2.days_1 PARTITION OF shard2.days FOR VALUES FROM (1) TO (9)",
        "INSERT INTO shard2.days VALUES (1)",
    ),
    "made was made": ("CREATE TABLE shard2.made (id bigint PRIMARY KEY)",),
}
"""What the message says of it, and what somebody does."""
HARMLESS = (
    "TRUNCATE shard2.people",
    "INSERT INTO shard2.people SELECT n, 'new' FROM generate_series(1, 300) AS n",
    "VACUUM shard2.writes",
    "VACUUM FULL shard2.people",
    "ANALYZE shard2.people",
    "CLUSTER shard2.pets USING pets_pkey",
    "REINDEX TABLE CONCURRENTLY shard2.pets",
    "CREATE TABLE shard1.made ()",
    "GRANT SELECT ON shard1.writes TO PUBLIC",
    "REVOKE SELECT ON shard1.writes FROM PUBLIC",
    "DROP TABLE shard1.made",
)
"""What a stream carries over, or does not concern it."""


PHASES = (
    streamed.ROWS, streamed.COPYING, streamed.REST, "step copy ran", "step follow ran",
    "span fence begin",
)  # fmt: skip
"""Where a stream is to carry what happens."""
HELD = (streamed.COPYING, "span fence begin")
"""Where shardctl holds a snapshot, or its guard does: what is made CONCURRENTLY waits for that."""


def make(fleet: MovingFleet, statements: tuple[str, ...], point: str = "") -> None:
    with fleet.log_in("a", user="postgres") as session:
        for statement in statements:
            text = statement.replace(" CONCURRENTLY", "") if point in HELD else statement
            session.execute(text.encode())


def clear(fleet: MovingFleet) -> None:
    """Take away what `verify` would miss in the other shards."""
    for table in GONE:
        fleet.ask(fleet.owner, f"DROP TABLE IF EXISTS shard2.{table} CASCADE")
    fleet.ask(fleet.owner, "DROP FUNCTION shard2.t()")
    fleet.ask(fleet.owner, "ALTER TABLE shard2.writes REPLICA IDENTITY DEFAULT")


@pytest.fixture
def ddl(fleet_stream: MovingFleet) -> MovingFleet:
    """Give a fleet with more tables in a moved shard."""
    patient(fleet_stream)
    make(fleet_stream, TABLES)
    return fleet_stream


@pytest.mark.parametrize("point", [streamed.COPYING, "step copy ran", "span fence begin"])
def test_ddl_ends_the_move_and_is_named(ddl: MovingFleet, point: str) -> None:
    fleet, target = ddl, streamed.TARGET
    with Clients(fleet, target=target) as clients:
        mover = fleet.mover("start", point)
        mover.at(point)
        for statements in DDL.values():
            make(fleet, statements, point)
        mover.go()
        assert mover.end() == 3, mover.said
        told = "".join(line for line in mover.said if line.startswith("StructureChanged"))
        assert [name for name in DDL if f"shard2.{name}" not in told] == [], mover.said
        clients.wait_served()
        finish(fleet, "abort")
    assert clients.errors() == []
    assert fleet.owner == "a"
    assert fleet.ask("a", "SELECT count(*) FROM shard2.people WHERE name = 'two'") == [(500,)]
    clear(fleet)
    prove_streamed(fleet, clients)


def test_maintenance_and_truncate_in_every_phase_are_carried_over(ddl: MovingFleet) -> None:
    fleet, target = ddl, streamed.TARGET
    with Clients(fleet, target=target) as clients:
        mover = fleet.mover("start", *PHASES)
        for number, point in enumerate(PHASES):
            mover.at(point)
            make(fleet, HARMLESS, point)
            fleet.ask("a", f"INSERT INTO shard2.people VALUES ({1000 + number}, '{point}')")
            mover.go()
        assert mover.end() == 0, mover.said
    assert clients.errors() == []
    expected = [(301, PHASES[-1])]
    assert fleet.ask(target, "SELECT count(*), max(name) FROM shard2.people") == expected
    clear(fleet)
    prove_streamed(fleet, clients)
