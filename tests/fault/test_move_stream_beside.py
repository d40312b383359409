"""Other commands beside a streamed move: each is refused and says what runs, or waits its turn."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.fleets.bloated import require_pg_repack
from tests.fixtures.moves import streamed
from tests.fixtures.moves.busy import prove_streamed
from tests.fixtures.moves.stopping import finish, patient
from tests.fixtures.moves.writers import Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

REFUSED = (
    ("migrate",), ("init",), ("repack",), ("read-only", "on", "2"), ("read-only", "on", "0"),
    ("moves", "resume"), ("moves", "abort"),
    ("move-shards", "2-3", "--to", "b"), ("move-shards", "0", "--to", "b", "--method", "stream"),
    ("move-shards", "5", "--to", "a", "--method", "stream"), ("move-shards", "4", "--to", "c"),
)  # fmt: skip
"""Commands that would change shards of either node."""
AT_ONCE = (("prune",), ("moves", "doctor"), ("moves", "list"))
"""Commands that find nothing to do, and leave the move alone."""


@pytest.mark.parametrize("point", ["span decide begin", "step copy ran"])
def test_commands_beside_a_move_are_refused(fleet_stream: MovingFleet, point: str) -> None:
    """Also where its process was stopped: nobody knows that it will not go on."""
    fleet, target = fleet_stream, streamed.TARGET
    patient(fleet)
    with Clients(fleet, target=target) as clients:
        mover = fleet.mover("start", point)
        mover.at(point)
        mover.signal(signal.SIGSTOP)
        move = fleet.journal()
        assert move is not None
        pending = fleet.migration("0002_more.sql", "CREATE TABLE more (id bigint PRIMARY KEY);")
        fleet.execute_everywhere("CREATE EXTENSION pg_repack")
        for command in REFUSED:
            done = fleet.here(*command)
            assert done.returncode == 1, (command, done.stdout, done.stderr)
            # Behind the fence, `read-only` misses the shards, and tells where to look.
            told = move.id in done.stderr or "`shardctl moves`" in done.stderr
            assert told, (command, done.stderr)
        pending.unlink()
        fleet.execute_everywhere("DROP EXTENSION pg_repack")
        for command in AT_ONCE:
            done = fleet.here(*command)
            assert done.returncode == 0, (command, done.stdout, done.stderr)
        mover.go()
        mover.signal(signal.SIGCONT)
        if mover.end() != 0:  # on a busy machine its time is up
            finish(fleet, "resume")
        clients.wait_served()
    assert clients.errors() == []
    assert fleet.owner == target
    prove_streamed(fleet, clients)


def test_two_operators_who_begin_the_same_move(fleet_stream: MovingFleet) -> None:
    fleet, target = fleet_stream, streamed.TARGET
    with Clients(fleet, target=target) as clients:
        movers = [fleet.mover("start", "step copy run") for _ in range(2)]
        [first] = [one for one in movers if one.next() is not None]
        [second] = [one for one in movers if one is not first]
        assert second.end() == 1
        told = [line for line in second.said if line.startswith(("NodeLocked", "MoveUnderWay"))]
        assert told, second.said
        first.go()
        assert first.end() == 0, first.said
        # Who comes when it is done has nothing to do.
        wait_for(lambda: not fleet.is_locked())
        assert fleet.here("move-shards", "2-3", "--to", target).returncode == 1
    assert clients.errors() == []
    prove_streamed(fleet, clients)


def test_a_pg_repack_by_hand_is_carried_over(fleet_stream: MovingFleet) -> None:
    """It puts a table's rows into another file, and swaps the two."""
    require_pg_repack(fleet_stream.servers["a"])
    server = fleet_stream.servers["a"].server
    argv = [server.binaries.program("pg_repack"), "-h", server.host, "-p", str(server.port)]
    argv += ["-U", "postgres", "-d", fleet_stream.database, "--no-superuser-check"]
    argv += ["--table", "shard2.writes", "--table", "shard3.writes"]
    points = [streamed.ROWS, streamed.REST, "step copy ran", "step follow ran"]
    patient(fleet_stream)
    fleet_stream.ask("a", "CREATE EXTENSION pg_repack")
    with Clients(fleet_stream, target="b") as clients:
        mover = fleet_stream.mover("start", *points)
        for point in points:
            mover.at(point)
            subprocess.run(argv, check=True, capture_output=True, timeout=60)
            mover.go()
        assert mover.end() == 0, mover.said
        clients.wait_served()
    fleet_stream.ask("a", "DROP EXTENSION pg_repack")
    assert clients.errors() == []
    assert fleet_stream.owner == "b"
    prove_streamed(fleet_stream, clients)
