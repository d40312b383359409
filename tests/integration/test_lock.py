"""The lock of a node: the next command gets it when the last has let go of it."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.state import lock
from shardctl.topology.model import NodeName
from tests.fixtures.fleets.fleet import command_line
from tests.fixtures.processes import ended
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from tests.fixtures.fleets.fleet import Fleet

HELD = {"c": lock._CLASS, "t": lock._TURN}
TAKE = "SELECT pg_advisory_lock(%(c)s, 0), pg_advisory_lock(%(t)s, 0)"


@contextmanager
def stranger(fleet: Fleet, rights: str = "") -> Iterator[psycopg.Connection[Any]]:
    """Hold what a command takes on node a, under the name of one, as another role."""
    fleet.execute("a", f"CREATE ROLE stranger LOGIN {rights}")
    fleet.execute("a", f"GRANT CONNECT ON DATABASE {fleet.database} TO stranger")
    name = "shardctl migrate by mallory"
    try:
        with fleet.connect("a", user="stranger", application_name=name) as session:
            session.execute(TAKE, HELD)
            yield session
    finally:
        fleet.execute("a", "DROP OWNED BY stranger; DROP ROLE stranger")


def test_another_role_that_takes_the_lock_is_in_nobodys_way(fleet_8: Fleet) -> None:
    """Everybody with CONNECT may take an advisory lock, under any name."""

    def excluded() -> None:
        second = lock.held(topology, nodes, command="second")
        with pytest.raises(lock.NodeLocked, match="first"), second:
            pass

    topology, nodes = fleet_8.topology(), [NodeName("a")]
    with stranger(fleet_8) as session:
        with lock.held(topology, nodes, command="first"):
            excluded()
            session.execute("SELECT pg_advisory_unlock_all()")
            excluded()
        session.execute(TAKE, HELD)
        done = fleet_8.here("init", "--yes", "--lock-wait", "2m")
        assert done.returncode == 0, done.stderr


def waiting(fleet: Fleet) -> int:
    """Count the commands that wait, or have waited, for their turn at node a."""
    query = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = {lock._TURN}"
    ((count,),) = fleet.query("a", query)
    return int(count)


def test_who_has_waited_reads_the_topology_again(fleet_8: Fleet) -> None:
    """A move that it has waited for may have written new owners into it."""
    path = fleet_8.write()
    argv = command_line(path, "migrate", "--yes", "--lock-wait", "2m")
    with ExitStack() as stack:
        with lock.held(fleet_8.topology(), [NodeName("a")], command="test"):
            waits = stack.enter_context(
                ended(subprocess.Popen(argv, stderr=subprocess.PIPE, text=True))
            )
            wait_for(lambda: waiting(fleet_8) == 1)
            path.write_text("cluster: [")
        _, said = waits.communicate(timeout=120)
    assert waits.returncode == 2, said
    assert str(path) in said


def test_when_the_time_is_over_the_holder_is_named(fleet_8: Fleet) -> None:
    topology = fleet_8.topology()
    with lock.held(topology, [NodeName("b")], command="test"):
        done = fleet_8.here("init", "--yes", "--lock-wait", "50ms")
    assert done.returncode == 1
    done = fleet_8.here("init", "--yes", "--lock-wait", "50ms")
    assert (done.returncode, waiting(fleet_8)) == (0, 0), done.stderr
