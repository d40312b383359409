"""Streamed moves from a source whose standby is away, or is promoted without the decision."""

from __future__ import annotations

import dataclasses
import shutil
import signal
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.hosts.local import Local
from shardctl.moves.marks import StandbysBehind
from shardctl.moves.service import MoveStopped
from shardctl.topology.model import NodeName
from tests.fixtures.servers.postgres import SUPERUSER, free_ports, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardctl.sandbox.local import LocalServer
    from tests.fixtures.moves.own import Lab


SLOT = "of_standby"
"""The standby's slot on its source, and what it calls itself."""


def make_standby(source: LocalServer, data: Path, port: int) -> LocalServer:
    """Start a standby of a server, and wait until it streams from its slot there."""
    data.mkdir(mode=0o700)
    if source.account is not None:
        shutil.chown(data, source.account)
    node = source.node
    where = f"host={node.host} port={node.port} user={SUPERUSER} application_name={SLOT}"
    argv = ["-d", where, "-D", str(data), "-R", "-C", "-S", SLOT, "--checkpoint=fast", "--no-sync"]
    Local().run([source.binaries.program("pg_basebackup"), *argv], user=source.account)
    node = dataclasses.replace(node, name=NodeName(f"{node.name}_2"), port=port)
    made = dataclasses.replace(source, node=node, data_directory=data)
    made.start()
    with psycopg.connect(f"{where} dbname=postgres", autocommit=True) as session:
        streams = "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'"
        wait_for(lambda: session.execute(streams).fetchone())
    return made


def fail_over(source: LocalServer, standby: LocalServer) -> LocalServer:
    """Let the standby be its source, at the same port: the old server never comes back.

    Clients find it there when it is promoted.
    """
    source.stop(mode="immediate")
    standby.start()
    with psycopg.connect(
        host=standby.node.host,
        port=standby.node.port,
        user=SUPERUSER,
        dbname="postgres",
        autocommit=True,
    ) as session:
        session.execute("SELECT pg_promote(true, 30)")
    standby.stop(mode="fast")
    node = dataclasses.replace(standby.node, port=source.node.port)
    promoted = dataclasses.replace(standby, node=node)
    promoted.start()
    return promoted


@pytest.fixture
def standby(fleet_own: Lab) -> Iterator[LocalServer]:
    """Make a standby of node a, with a slot there."""
    [port] = free_ports(1)
    data = fleet_own.directory / "nodes" / "a2"
    made = make_standby(fleet_own.server("a"), data, port)
    yield made
    made.stop(mode="immediate")


def test_a_standby_that_lost_the_decision_does_not_undo_it(
    fleet_own: Lab, standby: LocalServer
) -> None:
    """It has the fence; the target has the decision, which came through the stream."""
    words = ("move-shards", "2-3", "--to", "b", "--yes")
    one = fleet_own.begun(*words, before="decide", by="SIGSTOP")
    with psycopg.connect(
        host=standby.node.host,
        port=standby.node.port,
        user="postgres",
        dbname="postgres",
        autocommit=True,
    ) as session:
        session.execute("SELECT pg_wal_replay_pause()")
    # What it receives from now on is lost with its files.
    standby.stop(mode="immediate")
    one.send_signal(signal.SIGCONT)
    wait_for(lambda: fleet_own.ask("b", "SELECT 1 FROM shardctl.stream WHERE what = 'decision'"))
    one.kill()
    one.communicate()
    fail_over(fleet_own.server("a"), standby)
    assert fleet_own.copy("a").state.undoable
    fleet_own.resume()
    assert fleet_own.copy("a").state.claimed_by_target
    assert fleet_own.leads("shard2") == "b"
    assert "shard2" not in fleet_own.schemas("a")


def test_a_standby_that_is_away_keeps_the_cutover_from_its_decision(
    fleet_own: Lab, standby: LocalServer
) -> None:
    standby.stop()
    with pytest.raises(MoveStopped) as caught:
        fleet_own.move([2, 3], "b")
    assert isinstance(caught.value.error, StandbysBehind)
    assert caught.value.error.names == (SLOT,)
    assert fleet_own.copy("a").state.value == "undone"
    assert fleet_own.put(2)
    fleet_own.abort()
    # One that nothing promotes is left out.
    fleet_own.move([2, 3], "b", ignore_standby=True)
    assert fleet_own.leads("shard2") == "b"
