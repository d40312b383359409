"""A move whose target is cut off from all others: both sides go on, and neither gets an error."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from shardctl.fanout import Silent
from shardctl.hosts.local import Local
from shardctl.provision import poolers
from tests.fixtures.moves.proof import assert_clean
from tests.fixtures.network import namespaces
from tests.fixtures.network.switches import _ip, new_switch
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.own import Lab

NOWHERE = ("lladdr", "02:00:00:00:00:00", "nud", "permanent")


@pytest.fixture
def apart(fleet_own: Lab) -> Iterator[tuple[Lab, list[str]]]:
    """Give a fleet with node b on the other side of a network, and words of `ip neigh` for it."""
    namespaces.require()
    text = fleet_own.file.read_text()
    with new_switch() as switch:
        first = namespaces.boot("ip link set lo up; echo up; exec cat > /dev/null", "--net")
        try:
            pid, host = namespaces.inside(first), switch.new_address()
            switch.connect("far", pid, host)
            put(fleet_own, "a", switch.here)
            put(fleet_own, "b", host, "nsenter", "-t", str(pid), "--net")
            topology = fleet_own.topology
            all_poolers = list(topology.poolers.values())
            offers = poolers.plan(topology, all_poolers, 1, force=False, purpose="test")
            poolers.apply(offers, Silent())
            yield fleet_own, [host, "dev", f"shardctl{switch.number}"]
        finally:
            fleet_own.file.write_text(text)  # a sandbox ends what is here
            namespaces.shut(first)


def put(lab: Lab, node: str, host: str, *enter: str) -> None:
    """Let a node's server be at another address, in another network that one enters so."""
    lab.server(node).stop(mode="fast")
    text = lab.file.read_text()
    lab.file.write_text(text.replace(f"{node}: {{host: 127.0.0.1", f"{node}: {{host: {host}"))
    server = lab.server(node)
    server._configure()
    with (server.data_directory / "pg_hba.conf").open("a") as rules:
        rules.write("host all all all trust\n")
    become = ["runuser", "-u", str(server.account), "--", server.binaries.program("pg_ctl")]
    log = str(server.data_directory / "start.log")
    Local().run([*enter, *become, "-D", str(server.data_directory), "-l", log, "-w", "start"])


@pytest.mark.parametrize(("point", "serves"), [("arrive", True), ("claim", False)])
def test_a_target_that_is_cut_off_keeps_nobody_paused(
    apart: tuple[Lab, list[str]], point: str, *, serves: bool
) -> None:
    lab, way = apart
    written = {lab.put(2)}
    words = ("move-shards", "2-3", "--to", "b", "--keep-reverse", "0", "--yes")
    mover = lab.begun(*words, before=point, by="SIGSTOP")
    _ip("neigh", "replace", *way, *NOWHERE)
    mover.send_signal(signal.SIGCONT)
    wait_for(lambda: not lab.paused())
    if serves:  # before the decision
        written.add(lab.put(2))
    _ip("neigh", "del", *way)
    mover.communicate()
    if mover.returncode != 0:
        lab.resume()
    found = {one for (one,) in lab.ask("b", "SELECT id FROM shard2.photos")}
    assert written <= found
    assert_clean(lab, "b")
