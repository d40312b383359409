"""Moves of which every node and every pooler is reached over SSH."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fixtures.proving import prove
from tests.fixtures.writing import Clients

if TYPE_CHECKING:
    from tests.fixtures.moving import MovingFleet
    from tests.fixtures.sshd import Sshd


MOVE = ("move-shards", "2-3", "--to", "c", "--yes", "--retain", "0s", "--duplicate-shared")


def test_a_whole_move_over_ssh_under_traffic(remote: MovingFleet, sshd: Sshd) -> None:
    before = sshd.log.count("Accepted publickey")
    with Clients(remote) as clients:
        done = remote.shardctl(*MOVE)
        assert done.returncode == 0, done.stderr
        clients.wait_served()
    assert clients.codes() == set(), clients.errors()
    assert remote.owner == "c"
    prove(remote, clients)
    # One connection for all that went there.
    assert sshd.log.count("Accepted publickey") - before <= 6
    dropped = remote.here("prune", "--yes", "--now")
    assert dropped.returncode == 0, dropped.stderr
