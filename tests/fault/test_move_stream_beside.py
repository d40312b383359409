"""Other commands beside a streamed move: each is refused and says what runs, or waits its turn."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.moves import streamed
from tests.fixtures.moves.proof import prove
from tests.fixtures.moves.stopping import finish, patient
from tests.fixtures.moves.writers import Clients
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

REFUSED = (
    ("migrate",),
    ("init",),
    ("repack",),
    ("read-only", "on", "2"),
    ("read-only", "on", "0"),
    ("rows", "move"),
    ("moves", "resume"),
    ("moves", "abort"),
    ("move-shards", "2-3", "--to", "b"),
    ("move-shards", "0", "--to", "b", "--method", "stream"),
    ("move-shards", "5", "--to", "a", "--method", "stream"),
    ("move-shards", "4", "--to", "c"),
)
"""Commands that would change shards of either node."""
ENDING = {"init", "moves"}
"""Commands that may do something when no process is at work on the move."""
AT_ONCE = (("prune",), ("moves", "doctor"), ("moves", "list"))
"""Commands that find nothing to do, and leave the move alone."""
PENDING = "CREATE TABLE more (id bigint PRIMARY KEY);"


def require_refused(fleet: MovingFleet, commands: Sequence[tuple[str, ...]] = REFUSED) -> None:
    """Run all these commands; each names the move, or who holds the lock."""
    move = fleet.journal()
    assert move is not None
    pending = fleet.directory / "migrations" / "0002_more.sql"
    pending.write_text(PENDING)
    for node in fleet.servers:
        fleet.ask(node, "CREATE EXTENSION pg_repack")
    try:
        for command in commands:
            done = fleet.here(*command)
            assert done.returncode == 1, (command, done.stdout, done.stderr)
            # Behind the fence, `read-only` misses the shards, and tells where to look.
            told = move.id in done.stderr or "`shardctl moves`" in done.stderr
            assert told, (command, done.stderr)
    finally:
        pending.unlink()
        for node in fleet.servers:
            fleet.ask(node, "DROP EXTENSION pg_repack")
    for command in AT_ONCE:
        done = fleet.here(*command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)


@pytest.mark.parametrize("point", ["span decide begin", "step copy ran", "step follow ran"])
def test_commands_beside_a_move_are_refused(fleet_stream: MovingFleet, point: str) -> None:
    """Also where its process was stopped: nobody knows that it will not go on."""
    patient(fleet_stream)
    with Clients(fleet_stream, target="b") as clients:
        mover = fleet_stream.mover("start", point)
        mover.at(point)
        mover.signal(signal.SIGSTOP)
        require_refused(fleet_stream)
        mover.go()
        mover.signal(signal.SIGCONT)
        if mover.end() != 0:  # on a busy machine its time is up
            finish(fleet_stream, "resume")
        clients.wait_served()
    assert clients.errors() == []
    assert fleet_stream.owner == "b"
    assert streamed.left(fleet_stream) == []
    prove(fleet_stream, clients)


@pytest.mark.parametrize("verb", ["abort", "resume"])
def test_nobody_takes_a_move_from_its_process_in_any_step(
    fleet_stream: MovingFleet, verb: str
) -> None:
    points = [f"step {name} ran" for name in ("reserve", "structure", "copy", "indexes")]
    points += ["span ping begin", "span fence begin", "span decide begin", "span claim begin"]
    patient(fleet_stream)
    with Clients(fleet_stream, target="b") as clients:
        mover = fleet_stream.mover("start", *points)
        for point in points:
            mover.at(point)
            other = fleet_stream.mover(verb)
            assert other.end() != 0, (point, other.said)
            told = [line for line in other.said if line.startswith(("NodeLocked", "NotAbort"))]
            assert told, (point, other.said)
            mover.go()
        assert mover.end() == 0, mover.said
    assert clients.errors() == []
    assert streamed.left(fleet_stream) == []
    prove(fleet_stream, clients)


def test_two_operators_who_begin_the_same_move(fleet_stream: MovingFleet) -> None:
    with Clients(fleet_stream, target="b") as clients:
        movers = [fleet_stream.mover("start", "step structure run") for _ in range(2)]
        first = [one for one in movers if one.next() is not None]
        assert len(first) == 1, [one.said for one in movers]
        [second] = [one for one in movers if one is not first[0]]
        assert second.end() == 1
        told = [line for line in second.said if line.startswith(("NodeLocked", "MoveUnderWay"))]
        assert told, second.said
        first[0].go()
        assert first[0].end() == 0, first[0].said
        # Who comes when it is done has nothing to do.
        wait_for(lambda: not fleet_stream.is_locked())
        late = fleet_stream.here("move-shards", "2-3", "--to", "b")
        assert late.returncode == 1
        assert "already" in late.stderr, late.stderr
    assert clients.errors() == []
    assert streamed.left(fleet_stream) == []
    prove(fleet_stream, clients)


def test_what_a_killed_process_left_is_refused_too_until_it_is_aborted(
    fleet_stream: MovingFleet,
) -> None:
    with Clients(fleet_stream, target="b") as clients:
        mover = fleet_stream.mover("start", "step follow ran")
        mover.at("step follow ran")
        mover.kill()
        wait_for(lambda: not fleet_stream.is_locked())
        left = [c for c in REFUSED if c[0] not in ENDING and c != ("read-only", "on", "0")]
        require_refused(fleet_stream, left)
        finish(fleet_stream, "abort")
        mover = fleet_stream.mover("start")
        assert mover.end() == 0, mover.said
    assert clients.errors() == []
    assert streamed.left(fleet_stream) == []
    prove(fleet_stream, clients)
