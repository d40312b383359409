"""The sandbox's poolers: they come up beside the nodes, and everything that gets in their way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.errors import Problems, ShardctlError
from shardctl.fanout import Silent
from shardctl.hosts import files
from shardctl.pgbouncer.console import Console
from shardctl.sandbox import new, poolers
from shardctl.topology import loader
from shardctl.topology.model import PoolerName
from tests.fixtures.commands import command_line, here
from tests.fixtures.servers.postgres import (
    free_ports,
    free_run,
    local_node,
    local_pooler,
    local_topology,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardctl.topology.model import Topology


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers as others")

P1 = PoolerName("p1")


@pytest.fixture
def single(server_directory: Path, pgbouncer_program: str) -> Topology:
    """A pooler before a node that is not there, which the pooler need not know."""
    del pgbouncer_program  # without it there is nothing to test
    return with_poolers(server_directory, "p1")


def with_poolers(directory: Path, *names: str) -> Topology:
    [node, *ports] = free_ports(1 + len(names))
    topology = local_topology(directory, local_node(directory, "a", node, range(4)))
    found = {
        PoolerName(name): local_pooler(directory / ".sandbox" / name, name, port)
        for name, port in zip(names, ports, strict=True)
    }
    quick = replace(topology.database, options={"connect_timeout": "2"})
    return replace(topology, poolers=found, database=quick)


def changed(topology: Topology, **changes: Any) -> Topology:
    """Let the topology say something else of the first pooler."""
    first = replace(topology.poolers[P1], **changes)
    return replace(topology, poolers={**topology.poolers, P1: first})


def folder_of(topology: Topology) -> Path:
    return topology.poolers[P1].config.parent


def up(topology: Topology) -> dict[str, str]:
    return {one.pooler.name: one.did for one in poolers.up(topology, Silent())}


def foreseen(topology: Topology) -> dict[str, str]:
    return {one.name: does for one, does in poolers.foresee(topology)}


def down(topology: Topology, *, delete: bool = False) -> list[poolers.PoolerDown]:
    return poolers.down(topology, Silent(), delete=delete)


def states(topology: Topology) -> dict[str, str]:
    return {one.pooler.name: one.state for one in poolers.status(topology)}


def refused(topology: Topology) -> list[ShardctlError]:
    """Bring the poolers up, and give the errors that it must end with."""
    with pytest.raises(Problems) as problems:
        poolers.up(topology, Silent())
    assert all(error.hint for error in problems.value.errors)
    return problems.value.errors


def refused_at_once(topology: Topology) -> ShardctlError:
    """See that nothing is waited for, and that a dry run says the same."""
    began = time.monotonic()
    first, *rest = refused(topology)
    assert time.monotonic() - began < 5
    assert [error.code for error in rest] == ["some_failed"]
    with pytest.raises(Problems) as problems:
        poolers.foresee(topology)
    [same] = problems.value.errors
    assert (str(same), same.hint) == (str(first), first.hint)
    return first


def console_of(topology: Topology) -> Console:
    return Console(topology.poolers[P1], topology.database, purpose="test")


def config_of(topology: Topology) -> dict[str, str]:
    with console_of(topology) as console:
        return console.config()


def test_a_changed_port_is_refused_while_the_pooler_runs_and_taken_after(single: Topology) -> None:
    up(single)
    [port] = free_ports(1)
    moved = changed(single, port=port)
    error = refused_at_once(moved)
    before = single.poolers[P1].port
    assert str(error) == f"pooler p1 runs on port {before}; the topology has port {port}"
    assert [one.was_up for one in down(moved)] == [True]
    assert up(moved) == {"p1": "started"}
    assert config_of(moved)["listen_port"] == str(port)


def test_another_pooler_at_the_topologys_port_is_not_shut_down(
    server_directory: Path, pgbouncer_program: str
) -> None:
    del pgbouncer_program
    both = with_poolers(server_directory, "p1", "p2")
    up(both)
    first, second = both.poolers.values()
    swapped = replace(both, poolers={P1: replace(first, port=second.port)})
    assert [one.was_up for one in down(swapped)] == [True]
    assert states(both) == {"p1": "down", "p2": "up"}


def test_only_the_sandboxs_own_files_are_deleted(single: Topology) -> None:
    up(single)
    mine = folder_of(single) / "notes.txt"
    mine.write_text("mine")
    unfinished = single.poolers[P1].databases_file.with_name(f"shards.ini{files.UNFINISHED}")
    unfinished.write_text("half of")
    down(single, delete=True)
    assert list(folder_of(single).iterdir()) == [mine]


def test_what_sandbox_new_writes_for_a_closed_directory_serves_the_pooler_too(
    server_directory: Path, pgbouncer_program: str
) -> None:
    del pgbouncer_program
    closed = server_directory / "closed"
    closed.mkdir(mode=0o700)
    root = new.write(closed / "t.yaml", shards=2, nodes=1, spare=0, port=free_run(2)[0])
    topology = loader.load(closed / "t.yaml")
    pooler = topology.poolers[P1]
    try:
        assert pooler.config == root / "p1" / "pgbouncer.ini"
        assert pooler.databases_file.parent == root / "p1"
        assert (root.parent == closed) == (os.geteuid() != 0)
        assert up(topology) == {"p1": "started"}
        assert states(topology) == {"p1": "up"}
        down(topology, delete=True)
        assert list(root.iterdir()) == []
    finally:
        down(topology)
        shutil.rmtree(root)


class Sandbox:
    """The command line in a directory of its own."""

    def __init__(self, directory: Path, before: list[str]) -> None:
        self.file = directory / "topology.yaml"
        self.before = before
        self.told = ""

    def __call__(self, *words: str, code: int = 0, hidden: bool = False) -> str:
        given = ["--topology", str(self.file), "sandbox", *words]
        done = self._process(given) if hidden else here(*given)
        assert done.returncode == code, done.stderr
        self.told = done.stderr
        return done.stdout

    def _process(self, given: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.before, *command_line(*given)],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=120,
        )


@pytest.fixture
def sandbox(
    server_directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Sandbox]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = Sandbox(server_directory, [])
    made("new", "--shards", "2", "--nodes", "1", "--port", str(free_run(2)[0]))
    yield made
    made("down")


def test_the_command_line_runs_nodes_and_poolers(sandbox: Sandbox, pgbouncer_program: str) -> None:
    del pgbouncer_program
    plan = json.loads(sandbox("up", "--dry-run", "-o", "json"))
    pooler = loader.load(sandbox.file).poolers[P1]
    address = {"name": "p1", "host": "127.0.0.1", "port": pooler.port}
    assert plan["poolers"] == [address | {"plan": "make"}]
    with socket.create_server(("127.0.0.1", pooler.port)):
        sandbox("up", code=3)
    assert f"pooler p1: port {pooler.port} of 127.0.0.1 is in use by" in sandbox.told
    assert "a started; p1 did not" in sandbox.told
    assert json.loads(sandbox("up", "-o", "json"))["poolers"] == [address | {"did": "started"}]
    told = json.loads(sandbox("status", "-o", "json"))
    assert [(one["name"], one["state"]) for one in told["nodes"]] == [("a", "up")]
    [state] = told["poolers"]
    assert state["pid"] > 0
    assert state == address | {"state": "up", "pid": state["pid"], "config": str(pooler.config)}
    os.kill(state["pid"], signal.SIGKILL)
    [a, p1] = [line.split() for line in sandbox("up").splitlines() if "127.0.0.1" in line]
    assert (a[0], a[2:], p1[0], p1[2:]) == ("a", ["was", "up"], "p1", ["started"])
    assert "to be removed" not in sandbox.told
    own = pooler.config.with_name("pgbouncer.own.ini")
    own.write_text("; mine\n")
    ended = json.loads(sandbox("down", "--delete", "--yes", "-o", "json"))
    [one] = ended["poolers"]
    assert str(pooler.config) in one.pop("deleted")
    left = {"file": str(own), "reason": "it has your own settings"}
    assert one == {"name": "p1", "did": "stopped", "left": left}
    assert not (sandbox.file.parent / ".sandbox" / "a").exists()


def test_without_pgbouncer_the_sandbox_goes_on_and_says_so(
    sandbox: Sandbox, hidden_pgbouncer: list[str]
) -> None:
    sandbox.before = hidden_pgbouncer
    for words in (("up", "--dry-run"), ("up",)):
        told = json.loads(sandbox(*words, "-o", "json", hidden=True))
        assert sandbox.told.splitlines()[0] == (
            "note: this machine has no pgbouncer (apt-get install pgbouncer); "
            "continuing without poolers"
        )
        assert ([one["name"] for one in told["nodes"]], told["poolers"]) == (["a"], [])
    told = json.loads(sandbox("status", "-o", "json", hidden=True))
    assert (told["nodes"][0]["state"], told["poolers"][0]["state"]) == ("up", "absent")
