"""Rollouts beside what happens to nodes between two waves: a move, and the loss of a server."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from shardctl.errors import ShardctlError
from shardctl.fanout import Silent
from shardctl.provision import fleet as provisioning
from shardctl.rollout import run as rolling
from shardctl.rollout import status
from shardctl.rollout.waves import Wanted
from shardctl.sandbox import servers
from shardctl.state.rollouts import Brakes
from shardctl.topology.model import ShardId
from tests.fixtures.moves.stream_moves import planned
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from shardctl.state.rollouts import Rollout
    from tests.fixtures.moves.own import Lab

LIKES = "0002_likes.sql"


def migration(lab: Lab, text: str) -> None:
    (lab.directory / "migrations" / LIKES).write_text(text)


def way(lab: Lab) -> rolling.Way:
    return rolling.Way(lambda: lab.topology)


def begin(lab: Lab, *first: int) -> Rollout:
    wanted = Wanted(first=tuple(map(ShardId, first)))
    _, rollout = rolling.plan(lab.topology, wanted, Brakes(), strict=True)
    assert rollout is not None
    return rolling.advance(way(lab), rollout).rollout


def having(lab: Lab) -> dict[str, list[int]]:
    return {
        node: [
            shard
            for shard in lab.topology.nodes[node].shards  # type: ignore[index]  # a NodeName is a str
            if lab.ask(node, f"SELECT to_regclass('shard{shard}.likes') IS NOT NULL") == [(True,)]
        ]
        for node in "ab"
    }


def test_a_shard_moves_between_the_canary_and_the_rest(fleet_own: Lab) -> None:
    migration(fleet_own, "CREATE TABLE likes (id bigint PRIMARY KEY, n int);")
    rollout = begin(fleet_own, 2)
    # One shard that has the migration, and one that has not, go to the other node.
    fleet_own.start(planned(fleet_own, [2, 3], "b"))
    assert having(fleet_own) == {"a": [], "b": [2]}
    ended = rolling.advance(way(fleet_own), rollout).rollout
    assert ended.state == "done"
    assert having(fleet_own) == {"a": [0, 1], "b": [2, 3, 4, 5, 6, 7]}
    assert provisioning.plan_migrate(fleet_own.topology).changes() == []
    assert fleet_own.problems() == []


def test_a_node_that_dies_in_the_second_wave(fleet_own: Lab) -> None:
    migration(
        fleet_own,
        "CREATE TABLE likes (n int);\n"
        "DO $$ BEGIN IF current_schema() = 'shard6' AND to_regclass('public.slow') IS NOT NULL"
        " THEN PERFORM pg_sleep(60); END IF; END $$;",
    )
    with fleet_own.connect("b") as session:
        session.execute("CREATE TABLE public.slow ()")
    rollout = begin(fleet_own, 1)

    def kill() -> None:
        sleeps = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        wait_for(lambda: fleet_own.ask("b", sleeps) == [(1,)])
        fleet_own.server("b").stop(mode="immediate")

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(ShardctlError) as caught:
        rolling.advance(way(fleet_own), rollout)
    killer.join()
    assert caught.value.exit_code == 3
    messages = " ".join(one.message for one in caught.value.parts())
    assert "node b" in messages
    assert "node a:" not in messages
    known = status.look(fleet_own.topology, command="test")
    assert known.open is not None
    assert (known.open.state, known.open.wave) == ("stopped", 2)
    servers.up(fleet_own.topology, Silent())
    assert having(fleet_own)["a"] == [0, 1, 2, 3]
    with fleet_own.connect("b") as session:
        session.execute("DROP TABLE public.slow")
    ended = rolling.advance(way(fleet_own), known.open).rollout
    assert ended.state == "done"
    assert having(fleet_own) == {"a": [0, 1, 2, 3], "b": [4, 5, 6, 7]}
    assert fleet_own.problems() == []
