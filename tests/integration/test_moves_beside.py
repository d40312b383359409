"""Two moves at the same time, of four nodes: their cutovers take turns, and either may die."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from shardctl.errors import ShardctlError
from shardctl.moves import follow, service
from shardctl.moves.service import MoveStopped
from shardctl.pgbouncer import apply
from shardctl.topology import edit
from tests.fixtures.moves.own import lose, messages
from tests.fixtures.moves.proof import assert_agreed
from tests.fixtures.moves.stream_moves import replace_step
from tests.fixtures.processes import ended
from tests.fixtures.servers.postgres import PATIENCE_S, free_ports

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from tests.fixtures.moves.own import Lab

pytestmark = pytest.mark.long


_MAP, _VERSION = "UPDATE shardctl.map SET node = ", "UPDATE shardctl.cluster SET map_version = "


def test_what_shares_a_node_with_an_open_move_is_refused(
    fleet_four: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        replace_step(patch, follow.STREAM_STEP, lambda _: lose())
        with pytest.raises(MoveStopped):
            fleet_four.move([2], "c")
    first = service.read(fleet_four.topology).entry(None).move.id
    for shard, target in ((0, "d"), (5, "c"), (3, "b")):
        with pytest.raises(ShardctlError) as refused:
            service.preflight(fleet_four.topology, fleet_four.plan([shard], target))
        assert first in messages(refused.value)
    beside = fleet_four.plan([5], "d")
    [note] = [n for n in service.preflight(fleet_four.topology, beside).notes if first in n]
    assert "take turns" in note
    with monkeypatch.context() as patch:
        replace_step(patch, follow.STREAM_STEP, lambda _: lose())
        with pytest.raises(MoveStopped):
            fleet_four.start(beside)
    done = fleet_four.here("moves", "resume", "--yes")
    assert (done.returncode, first in done.stderr, beside.id in done.stderr) == (2, True, True)
    # The abort of one leaves the other as it is.
    assert fleet_four.here("moves", "abort", first, "--yes").returncode == 0
    # Nor does a cutover follow a map in which its shards are elsewhere.
    fleet_four.ask("c", f"{_MAP}'d' WHERE shard = 5", f"{_VERSION}9")
    done = fleet_four.here("moves", "resume", "--yes")
    assert done.returncode == 3, done.stderr
    assert "shards 5 are no longer on node b" in done.stderr
    fleet_four.ask("c", f"{_MAP}'b' WHERE shard = 5", f"{_VERSION}1")
    # The staged file of a move in a journal stops no other move, though a spare is down.
    path, spare = (
        fleet_four.topology.path,
        f"{{host: 127.0.0.1, port: {free_ports(1)[0]}, shards: none}}",
    )
    path.write_text(edit.with_entry(path.read_text(), "nodes", "e", spare))
    [left] = [apply.staged(pooler, first) for pooler in fleet_four.topology.poolers.values()]
    left.touch()
    done = fleet_four.here("moves", "resume", "--yes")
    assert done.returncode == 0, done.stderr
    left.unlink()
    assert fleet_four.here("node", "remove", "e", "--gone", "--yes").returncode == 0
    assert_agreed(fleet_four, 2, shard2="a", shard5="d")


def die(lab: Lab, at: str, *options: str) -> None:
    """Let a move of shard 2 to c kill itself before a sub-step."""
    words = ("move-shards", "2", "--to", "c", *options, "--yes")
    with ended(lab.begun(*words, before=at, by="SIGKILL")) as dying:
        _, told = dying.communicate(timeout=PATIENCE_S)
        assert dying.returncode == -signal.SIGKILL, told


def test_no_cutover_begins_beside_the_file_of_one_whose_nodes_are_away(
    fleet_four: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its guard will put that file in place, with the owners of before the other's cutover."""
    step, nodes = follow.STREAM_STEP, [fleet_four.server(name) for name in "ac"]

    def beside(context: MoveContext) -> None:
        step.run(context)
        die(fleet_four, "route", "--keep-reverse", "0")
        for one in nodes:
            one.stop(mode="immediate")

    second = fleet_four.plan([5], "d")
    with monkeypatch.context() as patch:
        replace_step(patch, step, beside)
        with pytest.raises(MoveStopped) as refused:
            fleet_four.start(second)
    assert ".staged belongs to a move" in messages(refused.value.error)
    for one in nodes:
        one.start()
    both = [one.move.id for one in service.read(fleet_four.topology).entries if one.open]
    for move in sorted(both, key=second.id.__eq__):
        done = fleet_four.here("moves", "resume", move, "--yes", "--lock-wait", "1m")
        assert done.returncode == 0, done.stderr
    assert_agreed(fleet_four, 3, shard2="c", shard5="d")
