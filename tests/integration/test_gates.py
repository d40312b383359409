"""The poolers during a cutover: what is held, and when."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from shardctl.moves import plan as planning
from shardctl.moves.gates import Gates
from shardctl.pgbouncer.console import Console
from tests.fixtures.harming import frozen, processes
from tests.fixtures.servers import wait_for

if TYPE_CHECKING:
    from tests.fixtures.lab import Lab


def gates(lab: Lab) -> Gates:
    """Give the gates of a move of shards 0 and 1, which nobody has used, to node c."""
    plan = lab.plan([0, 1], "c")
    topology = lab.topology
    return Gates(topology, planning.after(topology, plan), plan, purpose="shardctl test")


def logins(lab: Lab, alias: str) -> int:
    """Count the logins to a node that the pooler is at."""
    (pooler,) = lab.topology.poolers.values()
    with Console(pooler, lab.topology.database, purpose="test") as console:
        return sum(int(p["sv_login"] or 0) for p in console.pools() if p["database"] == alias)


def test_a_login_of_the_pooler_is_waited_for_and_not_broken_off(lab: Lab) -> None:
    with gates(lab) as at_work, ThreadPoolExecutor() as threads:
        at_work.open()
        with frozen(processes(lab.server("a").data_directory)):
            client = threads.submit(lab.put, 0)
            wait_for(lambda: logins(lab, "shard0") == 1)
            waiting = threads.submit(at_work.await_logins)
            wait_for(waiting.running)
            assert not waiting.done()
        waiting.result()
        assert logins(lab, "shard0") == 0
        at_work.hold(seconds=5)
        at_work.let_go()
        assert client.result() > 0
        assert lab.put(1) > 0


def test_a_login_that_does_not_end_holds_up_no_cutover(lab: Lab) -> None:
    with gates(lab) as at_work, ThreadPoolExecutor() as threads:
        at_work.open()
        with frozen(processes(lab.server("a").data_directory)):
            client = threads.submit(lab.put, 0)
            wait_for(lambda: logins(lab, "shard0") == 1)
            at_work.await_logins()
            assert logins(lab, "shard0") == 1
        assert client.result() > 0
