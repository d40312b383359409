"""A stream whose subscription is gone after it began to follow: no row is applied twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves import streamed
from tests.fixtures.moves.busy import prove_streamed
from tests.fixtures.moves.writers import Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import Mover, MovingFleet

pytestmark = pytest.mark.fault

TABLES = (
    "CREATE TABLE shard2.bare (n bigint)",
    "ALTER TABLE shard2.bare REPLICA IDENTITY FULL",
    "CREATE TABLE shard2.keyed (n bigint PRIMARY KEY)",
)
ONCE = "SELECT count(*), count(DISTINCT n) FROM shard2."


class Rows:
    """Rows of tables with a key and without, which reach the target by the stream."""

    def __init__(self, fleet: MovingFleet) -> None:
        self._fleet = fleet
        self.count = 0

    def stream(self) -> None:
        """Write some, and wait until the target has them: its source does not know that yet."""
        first, self.count = self.count, self.count + 50
        for table in ("bare", "keyed"):
            values = f"SELECT generate_series({first + 1}, {self.count})"
            self._fleet.ask("a", f"INSERT INTO shard2.{table} {values}")
        wait_for(lambda: self._fleet.ask("b", f"{ONCE}keyed") == [(self.count, self.count)])

    def assert_once(self) -> None:
        """See that their owner has each once."""
        for table in ("bare", "keyed"):
            assert self._fleet.ask(self._fleet.owner, ONCE + table) == [(self.count, self.count)]


@pytest.fixture
def rows(fleet_stream: MovingFleet) -> Rows:
    """Give a fleet whose moved shard has such tables."""
    for statement in TABLES:
        fleet_stream.ask("a", statement)
    return Rows(fleet_stream)


def killed(fleet: MovingFleet, mover: Mover) -> None:
    mover.kill()
    wait_for(lambda: not fleet.is_locked())


def ends(rows: Rows, clients: Clients, mover: Mover) -> None:
    """See that a process ends the move, and that nothing is lost or there twice."""
    assert mover.end(seconds=120) == 0, mover.said
    clients.wait_served()
    rows.assert_once()


def clear(fleet: MovingFleet) -> None:
    """Take away what `verify` would miss in the other shards."""
    fleet.ask(fleet.owner, "DROP TABLE shard2.bare, shard2.keyed")


@pytest.mark.parametrize("again", ["resume", "abort"])
def test_an_abort_killed_behind_the_subscription_applies_no_row_twice(
    fleet_stream: MovingFleet, rows: Rows, again: str
) -> None:
    with Clients(fleet_stream, target=streamed.TARGET) as clients:
        mover = fleet_stream.mover("start", "step cutover run")
        mover.at()
        killed(fleet_stream, mover)
        clients.wait_served()
        aborted = fleet_stream.mover("abort", "undo follow begin", "undo copy begin")
        aborted.at("undo follow begin")
        rows.stream()
        aborted.go()
        aborted.at("undo copy begin")
        killed(fleet_stream, aborted)
        ends(rows, clients, fleet_stream.mover(again))
    assert clients.errors() == []
    assert fleet_stream.owner == ("a" if again == "abort" else streamed.TARGET)
    clear(fleet_stream)
    prove_streamed(fleet_stream, clients)
