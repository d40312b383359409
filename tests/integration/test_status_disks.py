"""`status` measures the disks of hosts that are reached by SSH, too."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from shardctl.checks.status import observe
from shardctl.fanout import Silent
from shardctl.topology.model import NodeName, Ssh

if TYPE_CHECKING:
    from shardctl.checks.status import Status
    from shardctl.topology.model import Topology
    from tests.fixtures.fleets.fleet import Fleet

A = NodeName("a")


def by_ssh(fleet: Fleet, host: str) -> Topology:
    """Let node a be reached by SSH, and node b as this machine."""
    topology = fleet.topology()
    nodes = {
        name: dataclasses.replace(
            node,
            data_directory=fleet.servers[name].server.data_directory,
            ssh=Ssh(host, None, None, None, accept_new=False) if name == A else None,
        )
        for name, node in topology.nodes.items()
    }
    return dataclasses.replace(topology, nodes=nodes)


def look(topology: Topology) -> Status:
    return observe(topology, sample_s=0, progress=Silent())


@pytest.mark.usefixtures("box")
def test_a_host_that_is_reached_by_ssh_tells_its_disk(fleet_8: Fleet) -> None:
    there, here = look(by_ssh(fleet_8, "box")).nodes
    assert there.disk_error is None
    assert there.disk_free_bytes is not None
    assert there.disk_total_bytes is not None
    assert there.disk_total_bytes == pytest.approx(here.disk_total_bytes, rel=0.2)
    assert 0 < there.disk_free_bytes <= there.disk_total_bytes
