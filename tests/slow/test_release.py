"""Journals of release 0.1: the moves that it left are listed, shown and pruned."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.state.format import FORMAT
from shardctl.state.states import MoveState
from tests.fixtures import commands
from tests.fixtures.moves.release import ID, RELEASE, Recorded
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.servers.postgres import PgServer

OVER = (MoveState.unconfirmed, MoveState.done)
CHANGING_HANDS = {
    MoveState.fenced, MoveState.drained, MoveState.promoting, MoveState.claimed,
}  # fmt: skip


class Restored(Recorded):
    """Such a fleet on servers that tests share."""

    def load(self, state: MoveState) -> None:
        """Give both nodes the databases that they had in a state."""
        self.moved = state.claimed_by_target
        self.write()
        for node in ("a", "c"):
            if (RELEASE / state / f"{node}.sql").exists():
                with self.connect(node, dbname="postgres") as session:
                    session.execute("DROP DATABASE IF EXISTS app WITH (FORCE)")
                    session.execute("CREATE DATABASE app")
                with self.connect(node) as session:
                    self.restore(session, node, state)

    def here(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        state = str(self.directory / "state")
        return commands.here("--topology", str(self.file), *arguments, XDG_STATE_HOME=state)

    def shown(self, *arguments: str) -> dict[str, Any]:
        done = self.here(*arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture
def restored(two_servers: dict[str, PgServer], tmp_path: Path) -> Iterator[Restored]:
    """Give a fleet on shared servers, without its databases; its pooler is away."""
    pooler, b = free_ports(2)
    ports = [pooler, two_servers["a"].port, b, two_servers["b"].port]
    made = Restored(tmp_path, ports)
    for server in two_servers.values():
        with server.connect() as session:
            session.execute("CREATE ROLE app LOGIN")
    yield made
    for server in two_servers.values():
        with server.connect() as session:
            session.execute("DROP DATABASE IF EXISTS app WITH (FORCE)")
            session.execute("DROP ROLE app")


@pytest.mark.parametrize("state", MoveState)
def test_a_move_of_the_release_is_shown_as_the_release_showed_it(
    restored: Restored, state: MoveState
) -> None:
    restored.load(state)
    then, now = restored.recorded(state), restored.shown("moves", "show")
    assert now.items() >= then.items()
    (listed,) = restored.shown("moves", "list")["moves"]
    assert listed.items() >= {k: v for k, v in then.items() if k in listed}.items()
    assert now["state"] == (state if state.closed else "unfinished")
    assert now["can"] == list(state.can)


@pytest.mark.parametrize("state", OVER)
def test_what_a_move_of_the_release_retired_is_pruned(restored: Restored, state: MoveState) -> None:
    restored.load(state)
    for node in "ac":  # as if it had just ended: what it retired is kept for 24 hours
        with restored.connect(node) as session:
            session.execute("UPDATE shardctl.move SET ended = now()")
    dry = restored.shown("prune", "--dry-run")["retired"]
    assert [(one["node"], one["shard"]) for one in dry] == [("a", 2), ("a", 3), ("c", 0), ("c", 1)]
    assert all(one["refused"] and one["move"] == ID for one in dry)
    done = restored.here("prune", "--now", "--accept-unconfirmed", "--yes")
    assert done.returncode == 0, done.stderr
    (listed,) = restored.shown("moves", "list")["moves"]
    assert (listed["state"], listed["can"]) == ("done", [])
    assert restored.schemas("a") == {"shard0", "shard1"}
    assert restored.schemas("c") == {"shard2", "shard3"}


@pytest.mark.parametrize("state", MoveState)
def test_init_upgrades_the_schema_beside_a_move_unless_its_shards_change_hands(
    restored: Restored, state: MoveState
) -> None:
    restored.load(state)
    before = restored.shown("moves", "show")
    done = restored.here("init", "--yes", "--without-poolers")
    nodes = [node for node in "ac" if (RELEASE / state / f"{node}.sql").exists()]
    found = [restored.ask(node, "SELECT format FROM shardctl.cluster") for node in nodes]
    if state in CHANGING_HANDS:
        assert f"  move {ID} is unfinished: run `shardctl moves resume {ID}`" in done.stderr
        assert (done.returncode, found) == (1, [[(2,)]] * len(nodes))
    else:
        assert (done.returncode, found) == (0, [[(FORMAT,)]] * len(nodes)), done.stderr
    assert restored.shown("moves", "show") == before
